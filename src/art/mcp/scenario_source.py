"""Where a run's scenarios come from: generated for the server, or the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.mcp.checked_scenarios import Checks, ScenarioSet, generate_checked
from art.mcp.near_duplicates import words
from art.mcp.planned import as_planned
from art.mcp.probe import Probe
from art.mcp.scenario_checks import split_apart, tool_counts
from art.mcp.session import connect
from art.mcp.settings import TrainSettings

if TYPE_CHECKING:
    from art.llm.channel import Channel
    from art.mcp.types import GeneratedScenario, MCPResource, MCPTool

    Scenarios = ScenarioSet | Iterable[GeneratedScenario | Mapping[str, Any] | str]


async def offered(server: Any, chosen: TrainSettings) -> tuple[list[MCPTool], list[MCPResource]]:
    """Tools and resources of the server. Raises McpError, and ConfigurationError for unknown allow_writes."""
    async with connect(server, allow_writes=chosen.allow_writes) as session:
        return await session.tools(), await session.resources()


async def checked_scenarios_of(
    server: Any, channel: Channel | ConfigurationError, chosen: TrainSettings
) -> ScenarioSet:
    """Generated scenarios for a server that pass the checks, split; without training."""
    tools, resources = await offered(server, chosen)
    return await generated(server, channel, chosen, tools, resources)


async def generated(
    server: Any,
    channel: Channel | ConfigurationError,
    chosen: TrainSettings,
    tools: list[MCPTool],
    resources: list[MCPResource],
) -> ScenarioSet:
    """See `generate_checked`. Raises the error that stands in the place of a channel."""
    if isinstance(channel, ConfigurationError):
        raise channel
    async with Probe(server, tools, call_timeout=chosen.call_timeout) as probe:
        return await generate_checked(
            probe,
            channel,
            num_train=chosen.num_train,
            num_test=chosen.num_test,
            instructions=chosen.instructions,
            checks=Checks(tools=tools, allow_writes=chosen.allow_writes, similarity=chosen.similarity),
            resources=resources,
            seed=chosen.seed,
        )


def of_ones_own(given: Scenarios, chosen: TrainSettings, tools: list[MCPTool]) -> ScenarioSet:
    """The user's scenarios, each once, split. Raises ConfigurationError when there are not two."""
    if isinstance(given, ScenarioSet):
        return given
    different = {" ".join(words(one.task)): one for one in map(as_planned, given)}
    every = list(different.values())
    train, test = split_apart(every, min(chosen.num_test, len(every) - 1), seed=chosen.seed)
    return ScenarioSet(train=tuple(train), test=tuple(test), tools=tool_counts(every, tools))

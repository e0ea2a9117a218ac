"""Where a run's scenarios come from: generated for the server, or the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.mcp.scenarios.checked import Checks, ScenarioSet, generate_checked
from art.mcp.scenarios.checks import Rejection, check_new, split_apart, tool_counts
from art.mcp.scenarios.planned import PlannedScenario, as_planned
from art.mcp.scenarios.probe import Probe
from art.mcp.sessions.session import connect
from art.mcp.settings import TrainSettings

if TYPE_CHECKING:
    from art.llm.channel import Channel
    from art.mcp.types import GeneratedScenario, MCPDocument, MCPTool

    Scenarios = ScenarioSet | Iterable[GeneratedScenario | Mapping[str, Any] | str]


async def offered(server: Any, chosen: TrainSettings) -> tuple[list[MCPTool], list[MCPDocument]]:
    """Tools and documents of the server. Raises McpError, and ConfigurationError for unknown allow_writes."""
    async with connect(server, allow_writes=chosen.allow_writes) as session:
        return await session.tools(), await session.documents()


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
    resources: list[MCPDocument],
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
    """The user's scenarios, each once, split; what is held out already stays so.

    Raises ConfigurationError when there is not one for each side.
    """
    if isinstance(given, ScenarioSet):
        return without_overlap(given, chosen.similarity)
    every, twins = different(map(as_planned, given), (), chosen.similarity)
    train, test = split_apart(every, min(chosen.num_test, len(every) - 1), seed=chosen.seed)
    return ScenarioSet(
        train=tuple(train), test=tuple(test), rejected=tuple(twins), tools=tool_counts(every, tools)
    )


def without_overlap(given: ScenarioSet, similarity: float) -> ScenarioSet:
    """Without training scenarios that say what a held-out one does.

    Raises ConfigurationError when a side has none.
    """
    train, twins = different(given.train, given.test, similarity, within=False)
    if not train or not given.test:
        raise ConfigurationError(
            f"of the scenarios given, {len(train)} are to train on (without {len(twins)} that are held out "
            f"too) and {len(given.test)} held out: at least one of each is needed"
        )
    return replace(given, train=tuple(train), rejected=(*given.rejected, *twins))


def different(
    scenarios: Iterable[PlannedScenario],
    others: Iterable[PlannedScenario],
    similarity: float,
    *,
    within: bool = True,
) -> tuple[list[PlannedScenario], list[Rejection]]:
    """Those that say what none of the others does, nor, `within`, one before them; and the rest."""
    kept, twins, others = list[PlannedScenario](), list[Rejection](), list(others)
    for one in scenarios:
        twin = check_new(one, [*others, *kept] if within else others, similarity=similarity)
        if twin is None:
            kept.append(one)
        else:
            twins.append(twin)
    return kept, twins


def require_same(given: Scenarios, saved: ScenarioSet, chosen: TrainSettings) -> None:
    """Raises ConfigurationError where a run goes on with other scenarios than it began with."""
    mine = of_ones_own(given, chosen, [])
    train, held_out = ({one.task for one in side} for side in (mine.train, mine.test))
    if held_out != {one.task for one in saved.test} or not train >= {one.task for one in saved.train}:
        raise ConfigurationError(
            "scenarios: the run was started with others; leave them out, or give the run another name"
        )

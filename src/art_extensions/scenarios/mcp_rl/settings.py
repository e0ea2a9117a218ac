"""What a run of MCP-RL is asked for: its settings, and its scenarios.

Scenarios are generated for the server, or the user's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from art.backend import Keyword
from art.errors import ConfigurationError
from art.runs.folder import AboveZero, Count, Share
from art_extensions.scenarios.mcp.session import connect
from art_extensions.scenarios.mcp.types import PlannedScenario, as_planned
from art_extensions.scenarios.mcp_rl.checked_scenarios import ScenarioChecks, ScenarioSet, generate_checked
from art_extensions.scenarios.mcp_rl.scenario_checks import (
    SIMILARITY,
    PlanProbe,
    Rejection,
    check_new,
    split_apart,
    tool_counts,
)
from art_extensions.scenarios.task_settings import TaskSettings


@dataclass(frozen=True, kw_only=True)
class TrainSettings(TaskSettings):
    """The settings of a run, without its server, models and judge."""

    ENTRY: ClassVar[str] = "mcp.train"
    MAY_CHANGE: ClassVar[frozenset[str]] = TaskSettings.MAY_CHANGE | {"deadline", "call_timeout"}

    num_train: Count = 16
    """Scenarios to train on."""
    num_test: Count = 8
    """Scenarios held out, for the comparison of before and after."""
    instructions: Annotated[str | None, Keyword(takes="a text")] = None
    """Additional instructions for the generator."""
    similarity: Share = SIMILARITY
    """Similarity (0 to 1) from which two scenarios count as the same."""
    difficulty_rollouts: Annotated[int, Keyword(least=0)] = 2
    """Rollouts of the base model per training scenario, to measure its difficulty. 0: not measured."""
    rubric: Annotated[str | None, Keyword(takes="a text")] = None
    """Criteria of a good rollout, for a judge given by name. Default: RULER's own."""
    system_prompt: Annotated[str | None, Keyword(takes="a text")] = None
    """System prompt of the agent. Default: the rollout's own."""
    allow_writes: tuple[str, ...] | Literal[True] = ()
    """Writing tools that may be called. True: all."""
    max_turns: Count = 10
    """Completions of one rollout."""
    deadline: AboveZero = 300.0
    """Seconds a rollout may take."""
    call_timeout: AboveZero = 60.0
    """Seconds a tool call may take."""
    result_limit: Count = 8000
    """Characters of a tool's result that the agent sees."""

    def __post_init__(self) -> None:
        if isinstance(self.allow_writes, str):
            raise ConfigurationError(f"allow_writes={self.allow_writes!r}: give a list of tools, or True")
        super().__post_init__()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Builds the settings from keywords. Raises ConfigurationError for an unknown one, with the known
        ones.
        """
        writes = options.get("allow_writes")
        # A list in JSON, and as most people write it.
        return super().from_options(
            {**options, "allow_writes": tuple(writes)} if isinstance(writes, list) else options
        )


if TYPE_CHECKING:
    from art.rewards.llm.channel import Channel
    from art_extensions.scenarios.mcp.types import GeneratedScenario, MCPDocument, MCPTool

    Scenarios = ScenarioSet | Iterable[GeneratedScenario | Mapping[str, Any] | str]


async def tools_and_documents(server: Any, chosen: TrainSettings) -> tuple[list[MCPTool], list[MCPDocument]]:
    """Tools and documents of the server. Raises McpError, and ConfigurationError for unknown allow_writes."""
    async with connect(server, allow_writes=chosen.allow_writes) as session:
        return await session.tools(), await session.documents()


async def checked_scenarios_of(
    server: Any, channel: Channel | ConfigurationError, chosen: TrainSettings
) -> ScenarioSet:
    """Generated scenarios for a server that pass the checks, split; without training."""
    tools, resources = await tools_and_documents(server, chosen)
    return await generate_scenario_set(server, channel, chosen, tools, resources)


async def generate_scenario_set(
    server: Any,
    channel: Channel | ConfigurationError,
    chosen: TrainSettings,
    tools: list[MCPTool],
    resources: list[MCPDocument],
) -> ScenarioSet:
    """See `generate_checked`. Raises the error that stands in the place of a channel."""
    if isinstance(channel, ConfigurationError):
        raise channel
    async with PlanProbe(server, tools, call_timeout=chosen.call_timeout) as probe:
        return await generate_checked(
            probe,
            channel,
            num_train=chosen.num_train,
            num_test=chosen.num_test,
            instructions=chosen.instructions,
            checks=ScenarioChecks(
                tools=tools, allow_writes=chosen.allow_writes, similarity=chosen.similarity
            ),
            resources=resources,
            seed=chosen.seed,
        )


def split_own_scenarios(scenarios: Scenarios, chosen: TrainSettings, tools: list[MCPTool]) -> ScenarioSet:
    """The user's scenarios, each once, split; what is held out already stays so.

    Raises ConfigurationError when there is not one for each side.
    """
    if isinstance(scenarios, ScenarioSet):
        return without_overlap(scenarios, chosen.similarity)
    every, twins = without_near_duplicates(map(as_planned, scenarios), (), chosen.similarity)
    train, test = split_apart(every, min(chosen.num_test, len(every) - 1), seed=chosen.seed)
    return ScenarioSet(
        train=tuple(train), test=tuple(test), rejected=tuple(twins), tools=tool_counts(every, tools)
    )


def without_overlap(scenarios: ScenarioSet, similarity: float) -> ScenarioSet:
    """Leaves out training scenarios that repeat a held-out one.

    Raises ConfigurationError when a side has none.
    """
    train, twins = without_near_duplicates(scenarios.train, scenarios.test, similarity, within=False)
    if not train or not scenarios.test:
        raise ConfigurationError(
            f"of the scenarios given, {len(train)} are to train on (without {len(twins)} that are held out "
            f"too) and {len(scenarios.test)} held out: at least one of each is needed"
        )
    return replace(scenarios, train=tuple(train), rejected=(*scenarios.rejected, *twins))


def without_near_duplicates(
    scenarios: Iterable[PlannedScenario],
    others: Iterable[PlannedScenario],
    similarity: float,
    *,
    within: bool = True,
) -> tuple[list[PlannedScenario], list[Rejection]]:
    """Splits scenarios into those that repeat no other, nor one before them `within`, and the rest."""
    kept, twins, others = list[PlannedScenario](), list[Rejection](), list(others)
    for one in scenarios:
        twin = check_new(one, [*others, *kept] if within else others, similarity=similarity)
        if twin is None:
            kept.append(one)
        else:
            twins.append(twin)
    return kept, twins


def require_same_scenarios(scenarios: Scenarios, saved: ScenarioSet, chosen: TrainSettings) -> None:
    """Raises ConfigurationError where a run goes on with other scenarios than it began with."""
    mine = split_own_scenarios(scenarios, chosen, [])
    train, held_out = ({one.task for one in side} for side in (mine.train, mine.test))
    if held_out != {one.task for one in saved.test} or not train >= {one.task for one in saved.train}:
        raise ConfigurationError(
            "scenarios: the run was started with others; leave them out, or give the run another name"
        )

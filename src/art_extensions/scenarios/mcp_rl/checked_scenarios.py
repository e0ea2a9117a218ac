"""Scenarios that passed their checks, generated until there are enough, and how hard they are for a model.

A `ScenarioSet` has those to train on and those held out. Difficulty is the share of rollouts that succeed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from art.environments.measure import Measure, measured_value
from art.errors import ConfigurationError, LlmAnswerError
from art.trajectories import Trajectory
from art_extensions.scenarios.mcp.types import MCPDocument, MCPTool, PlannedScenario, as_planned
from art_extensions.scenarios.mcp_rl.generate_scenarios import ScenarioWriter
from art_extensions.scenarios.mcp_rl.scenario_checks import (
    SIMILARITY,
    PlanProbe,
    Rejection,
    check_new,
    check_plan,
    may_call,
    select_spread,
    split_apart,
    tool_counts,
)

if TYPE_CHECKING:
    from art.rewards.llm.channel import Channel
    from art_extensions.scenarios.mcp.session import Writes


ScenarioRollout = Callable[[PlannedScenario, int], Awaitable[Trajectory]]
"""One rollout at a scenario; the number tells rollouts apart."""


async def measure_difficulty(
    scenarios: Sequence[PlannedScenario],
    attempt: ScenarioRollout,
    *,
    attempts: int = 4,
    measure: Measure | None = None,
) -> list[PlannedScenario]:
    """The scenarios, each with its pass rate: the mean over `attempts` of `measure`, 0 to 1.

    Without `measure`, a rollout passes when the agent called complete_task within its turns and no tool call
    failed: a hint, which says nothing about its answer. Raises what `attempt` raises, the first of it, and
    ConfigurationError for fewer than one rollout.
    """
    if attempts < 1:
        raise ConfigurationError(f"measure_difficulty(attempts={attempts!r}): at least 1 is needed")
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [
                [
                    tasks.create_task(rollout_passed(attempt(scenario, number), measure))
                    for number in range(attempts)
                ]
                for scenario in scenarios
            ]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [
        scenario.measured(sum(one.result() for one in mine) / attempts)
        for scenario, mine in zip(scenarios, running, strict=True)
    ]


async def rollout_passed(rollout: Awaitable[Trajectory], measure: Measure | None) -> float:
    trajectory = await rollout
    return await measured_value(trajectory, measure or clean_finish)


def clean_finish(trajectory: Trajectory) -> float:
    """Returns 1 if the agent completed its task without a failed tool call, else 0."""
    metrics = trajectory.metrics
    return float(bool(metrics.get("success")) and not metrics.get("tool_errors"))


def learnable_first(scenarios: Sequence[PlannedScenario], *, least: int) -> list[PlannedScenario]:
    """Leaves out scenarios that the model always solves, which give no gradient, as long as `least`
    are left.
    """
    kept = [scenario for scenario in scenarios if scenario.pass_rate is None or scenario.pass_rate < 1.0]
    spare = [scenario for scenario in scenarios if scenario.pass_rate == 1.0]
    return [*kept, *spare[: max(0, least - len(kept))]]


logger = logging.getLogger(__name__)

GENERATION_ROUNDS = 6
SPARE = 1.25
"""How many more are asked for than are needed: some do not pass, and of the others the spread decides."""
ENOUGH = 0.5
"""Share of what was asked for below which there is no point in going on."""


@dataclass(frozen=True, kw_only=True)
class ScenarioSet:
    """The training and test scenarios of a run; no test scenario is the same as a training one."""

    train: tuple[PlannedScenario, ...]
    test: tuple[PlannedScenario, ...]
    rejected: tuple[Rejection, ...] = ()
    tools: Mapping[str, int]
    """The number of plans that each tool of the server is in."""

    @property
    def rejections(self) -> dict[str, int]:
        """Returns how many were rejected, by reason."""
        return dict(Counter(one.reason for one in self.rejected))

    @property
    def unplanned(self) -> int:
        """Returns how many came without a plan: nothing could be checked but that they are new."""
        return sum(not scenario.plan for scenario in (*self.train, *self.test))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "train": [scenario.to_dict() for scenario in self.train],
            "test": [scenario.to_dict() for scenario in self.test],
            "rejected": [asdict(one) for one in self.rejected],
            "tools": dict(self.tools),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScenarioSet:
        """The inverse of `to_dict`. Raises ConfigurationError for another shape."""
        try:
            return cls(
                train=tuple(map(as_planned, data["train"])),
                test=tuple(map(as_planned, data["test"])),
                rejected=tuple(Rejection(**item) for item in data.get("rejected", ())),
                tools=dict(data.get("tools", {})),
            )
        except (TypeError, ValueError, KeyError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(
                f'scenarios are {{"train": [...], "test": [...]}}, each with a task; these are not: {error}'
            ) from error

    def with_train(self, train: Sequence[PlannedScenario]) -> ScenarioSet:
        """The same with other training scenarios."""
        return replace(self, train=tuple(train))


@dataclass(frozen=True, kw_only=True)
class ScenarioChecks:
    """The checks that a scenario must pass. similarity: see `near_duplicate`."""

    tools: Sequence[MCPTool]
    allow_writes: Writes = ()
    similarity: float = SIMILARITY

    async def rejection(
        self, scenario: PlannedScenario, others: Sequence[PlannedScenario], probe: PlanProbe
    ) -> Rejection | None:
        """Returns why the scenario is not used; None when it is. The server is asked last."""
        return (
            check_plan(scenario, self.tools, allow_writes=self.allow_writes)
            or check_new(scenario, others, similarity=self.similarity)
            or await probe.rejection(scenario)
        )


async def generate_checked(
    probe: PlanProbe,
    channel: Channel,
    *,
    num_train: int,
    num_test: int,
    instructions: str | None = None,
    checks: ScenarioChecks,
    resources: Sequence[MCPDocument] = (),
    seed: int = 0,
) -> ScenarioSet:
    """Scenarios that pass the checks, spread over the tools, split into training and test.

    With fewer, but at least half of them, a warning says so and the run can go on. Raises ConfigurationError
    when the server has no tool that a rollout may call, LlmAnswerError when too few pass, with the reasons;
    and what the channel and the probe raise.
    """
    callable_tools = callable_by_rollouts(checks.tools, checks.allow_writes)
    writer = ScenarioWriter(
        channel=channel, tools=callable_tools, resources=resources, instructions=instructions, plans=True
    )
    wanted = num_train + num_test
    good: list[PlannedScenario] = []
    rejected: list[Rejection] = []
    for turn in range(GENERATION_ROUNDS):
        missing = wanted - len(good)
        asked = max(1, round(SPARE * missing))
        neglected = [name for name, count in tool_counts(good, callable_tools).items() if not count]
        tasks = [scenario.task for scenario in good]
        salt = f"round {turn}" if turn else ""
        for scenario in await writer.write(
            asked, existing=tasks, neglected=neglected if good else (), salt=salt
        ):
            problem = await checks.rejection(scenario, good, probe)
            good, rejected = (
                ([*good, scenario], rejected) if problem is None else (good, [*rejected, problem])
            )
        tried = len(good) + len(rejected)
        logger.info("%s of %s scenarios passed their checks; %s are needed", len(good), tried, wanted)
        if len(good) >= wanted:
            break
    require_enough(good, rejected, wanted)
    chosen = select_spread(good, wanted)
    train, test = split_apart(chosen, max(1, min(num_test, len(chosen) - 1)), seed=seed)
    return ScenarioSet(
        train=tuple(train),
        test=tuple(test),
        rejected=tuple(rejected),
        tools=tool_counts(chosen, callable_tools),
    )


def callable_by_rollouts(tools: Sequence[MCPTool], allow_writes: Writes) -> list[MCPTool]:
    """The tools that rollouts may call. Raises ConfigurationError when there is none."""
    kept = [tool for tool in tools if may_call(tool, allow_writes)]
    if not kept:
        names = ", ".join(tool.name for tool in tools) or "none at all"
        raise ConfigurationError(
            f"the server marks no tool as read-only (it has: {names}). Name those that only read with "
            "read_only= of the server (--read-only), or those that may change something with allow_writes= "
            "(--allow-write)"
        )
    return kept


def require_enough(good: Sequence[PlannedScenario], rejected: Sequence[Rejection], wanted: int) -> None:
    """Raises LlmAnswerError when fewer than half of what is wanted passed; warns when some are missing."""
    reasons = ", ".join(f"{name} {count}" for name, count in Counter(one.reason for one in rejected).items())
    found = f"{len(good)} of {wanted} scenarios passed the checks (rejected: {reasons or 'none'})"
    if len(good) < max(2, ENOUGH * wanted):
        example = f"; for instance {rejected[-1].task!r}: {rejected[-1].detail}" if rejected else ""
        raise LlmAnswerError(f"{found}{example}. Ask for fewer, or give the generator instructions")
    if len(good) < wanted:
        logger.warning("%s; going on with those", found)

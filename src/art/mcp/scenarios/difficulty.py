"""How hard scenarios are for a model, measured: the share of its attempts that succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from art.errors import ConfigurationError
from art.mcp.scenarios.planned import PlannedScenario
from art.runs.measure import Measure, value_of
from art.trajectories import Trajectory

Attempt = Callable[[PlannedScenario, int], Awaitable[Trajectory]]
"""One rollout at a scenario; the number tells attempts apart."""


async def measure_difficulty(
    scenarios: Sequence[PlannedScenario],
    attempt: Attempt,
    *,
    attempts: int = 4,
    measure: Measure | None = None,
) -> list[PlannedScenario]:
    """The scenarios, each with its pass rate: the mean over `attempts` of `measure`, 0 to 1.

    Without `measure`, an attempt passes when the agent called complete_task within its turns and no tool call
    failed: a hint, which says nothing about its answer. Raises what `attempt` raises, the first of it, and
    ConfigurationError for fewer than one attempt.
    """
    if attempts < 1:
        raise ConfigurationError(f"measure_difficulty(attempts={attempts!r}): at least 1 is needed")
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [
                [tasks.create_task(passed(attempt(scenario, number), measure)) for number in range(attempts)]
                for scenario in scenarios
            ]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [
        scenario.measured(sum(one.result() for one in mine) / attempts)
        for scenario, mine in zip(scenarios, running, strict=True)
    ]


async def passed(rollout: Awaitable[Trajectory], measure: Measure | None) -> float:
    trajectory = await rollout
    return await value_of(trajectory, measure or clean_finish)


def clean_finish(trajectory: Trajectory) -> float:
    """1 when the agent completed its task without a failed tool call, else 0."""
    metrics = trajectory.metrics
    return float(bool(metrics.get("success")) and not metrics.get("tool_errors"))


def learnable_first(scenarios: Sequence[PlannedScenario], *, least: int) -> list[PlannedScenario]:
    """Without those that the model always does, which teach it nothing, as long as `least` are left."""
    kept = [scenario for scenario in scenarios if scenario.pass_rate is None or scenario.pass_rate < 1.0]
    spare = [scenario for scenario in scenarios if scenario.pass_rate == 1.0]
    return [*kept, *spare[: max(0, least - len(kept))]]

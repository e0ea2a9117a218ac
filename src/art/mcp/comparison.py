"""Before and after, side by side: the judge sees both sides' attempts at a scenario as one group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art.gather import gather_trajectory_groups
from art.mcp.difficulty import Measure, clean_finish, value_of
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored

FIGURES = ("task_completed", "success", "ran_out_of_turns", "num_turns", "tool_errors")
"""Of a rollout's metrics: those that are compared."""
CLEAN, MEASURE = "clean_finish", "measure"
EVEN = 1e-9
ScoreGroup = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup]]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side: means over its attempts at the test scenarios."""

    attempts: int
    failed: int
    """Attempts that ended with an error, which says nothing about the agent."""
    figures: dict[str, float] = field(default_factory=dict)
    """By name: the rollout's metrics, clean_finish, and measure where there is one."""
    judged: float | None = None
    """Mean score of the judge, who saw both sides at once; None: not judged."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The model before and after its training, on the same test scenarios with the same seeds."""

    before: Side
    after: Side
    wins: int = 0
    """Scenarios in which the judge scored the attempts after training higher, on average."""
    ties: int = 0
    losses: int = 0
    unjudged: int = 0
    """Scenarios without a verdict."""
    scenarios: tuple[dict[str, Any], ...] = ()
    """By scenario: task, and the judge's mean scores `before` and `after`, None where there is none."""


async def side_of(
    attempts: Sequence[Sequence[Trajectory]], per_scenario: int, measure: Measure | None
) -> Side:
    """The means of one side, without the judge. per_scenario: attempts that were asked for."""
    flat = [one for row in attempts for one in row]
    return Side(
        attempts=len(flat),
        failed=per_scenario * len(attempts) - len(flat),
        figures=await figures_of(flat, measure),
    )


async def figures_of(trajectories: Sequence[Trajectory], measure: Measure | None) -> dict[str, float]:
    """Means by name; empty without trajectories."""
    rows: list[dict[str, float]] = []
    for one in trajectories:
        row = {name: float(one.metrics[name]) for name in FIGURES if name in one.metrics}
        row[CLEAN] = clean_finish(one)
        if measure is not None:
            row[MEASURE] = await value_of(one, measure)
        rows.append(row)
    names = list(rows[0]) if rows else []
    return {name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in names}


async def compare(
    tasks: Sequence[str],
    before: Sequence[Sequence[Trajectory]],
    after: Sequence[Sequence[Trajectory]],
    *,
    sides: tuple[Side, Side],
    score: ScoreGroup | None,
) -> Comparison:
    """Judge both sides of each scenario in one group, since the judge's scores mean something only there.

    sides: their other figures. score: as `after_each` takes it; None: nothing is judged.
    """
    if score is None:
        return Comparison(before=sides[0], after=sides[1], unjudged=len(tasks))
    rows: list[dict[str, Any]] = []
    pairs = [TrajectoryGroup([*old, *new]) for old, new in zip(before, after, strict=True)]
    groups = await gather_trajectory_groups(pairs, pbar_desc=None, after_each=score)
    for task, old, group in zip(tasks, before, groups, strict=True):
        judged = [None if isinstance(one.reward, Unscored) else one.reward for one in group]
        rows.append({"task": task, "before": mean(judged[: len(old)]), "after": mean(judged[len(old) :])})
    known = [row for row in rows if row["before"] is not None and row["after"] is not None]
    return Comparison(
        before=with_judged(sides[0], known, "before"),
        after=with_judged(sides[1], known, "after"),
        wins=sum(row["after"] > row["before"] + EVEN for row in known),
        losses=sum(row["before"] > row["after"] + EVEN for row in known),
        ties=sum(abs(row["after"] - row["before"]) <= EVEN for row in known),
        unjudged=len(rows) - len(known),
        scenarios=tuple(rows),
    )


def with_judged(side: Side, rows: Sequence[Mapping[str, Any]], name: str) -> Side:
    return Side(
        attempts=side.attempts,
        failed=side.failed,
        figures=side.figures,
        judged=mean([row[name] for row in rows]),
    )


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known; None when none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

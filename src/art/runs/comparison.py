"""Before and after, side by side: the judge sees both sides' attempts at a task as one group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from art.gather import gather_trajectory_groups
from art.runs.estimate import Estimate
from art.runs.measure import Figures, Measure, mean, mean_figures, metrics_of, value_of
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored

if TYPE_CHECKING:
    from art.rewards.reward import Reward

EVEN = 1e-9
Verdict = Literal["better", "worse", "no difference shown", "not judged"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side: means over its attempts at the test tasks."""

    attempts: int
    failed: int
    """Attempts that ended with an error, which says nothing about the model."""
    judged: float | None = None
    """Mean score over the tasks with a verdict; None: nothing was judged."""
    figures: dict[str, float] = field(default_factory=dict)
    """By name: what rollouts measure, and `measure`, the true quality, where somebody knows it."""


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One test task: means over the attempts of each side, None where nothing is known."""

    task: str
    judged_before: float | None
    judged_after: float | None
    measured_before: float | None
    measured_after: float | None
    answer_before: str | None
    """What the model said last in its first attempt; None: there is none."""
    answer_after: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The model before and after its training: the same test tasks, the same seeds, one judgement."""

    before: Side
    after: Side
    judged: Estimate | None = None
    """Mean over the tasks of what the judge gives after, less before; None: not judged."""
    measured: Estimate | None = None
    """The same of the true quality."""
    wins: int = 0
    """Tasks whose attempts the judge scored higher after training, on average."""
    ties: int = 0
    losses: int = 0
    unjudged: int = 0
    """Tasks without a verdict on both sides."""
    tasks: tuple[TaskRow, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Better or worse only where the whole interval lies on one side of zero."""
        if self.judged is None:
            return "not judged"
        if self.judged.above_zero:
            return "better"
        return "worse" if self.judged.below_zero else "no difference shown"


async def compare(
    tasks: Sequence[str],
    before: Sequence[Sequence[Trajectory]],
    after: Sequence[Sequence[Trajectory]],
    *,
    per_task: int,
    judge: Reward | None,
    figures: Figures = metrics_of,
    measure: Measure | None = None,
) -> Comparison:
    """Judge both sides of each task in one group: scores mean something only beside each other.

    per_task: attempts that were asked for. judge: None judges nothing. Raises what the judge raises.
    """
    verdicts = await _judged(before, after, judge)
    rows = [
        TaskRow(
            task=task,
            judged_before=verdict[0],
            judged_after=verdict[1],
            measured_before=await _measured(old, measure),
            measured_after=await _measured(new, measure),
            answer_before=answer_of(old[0]) if old else None,
            answer_after=answer_of(new[0]) if new else None,
        )
        for task, old, new, verdict in zip(tasks, before, after, verdicts, strict=True)
    ]
    both = [(row.judged_before, row.judged_after) for row in rows]
    known = [(old, new) for old, new in both if old is not None and new is not None]
    judged = [new - old for old, new in known]
    truth = [(row.measured_before, row.measured_after) for row in rows]
    return Comparison(
        before=await _side(before, per_task, figures, measure, mean([old for old, _ in known])),
        after=await _side(after, per_task, figures, measure, mean([new for _, new in known])),
        judged=Estimate.of(judged),
        measured=Estimate.of([new - old for old, new in truth if old is not None and new is not None]),
        wins=sum(one > EVEN for one in judged),
        ties=sum(abs(one) <= EVEN for one in judged),
        losses=sum(one < -EVEN for one in judged),
        unjudged=len(rows) - len(judged),
        tasks=tuple(rows),
    )


async def _judged(
    before: Sequence[Sequence[Trajectory]], after: Sequence[Sequence[Trajectory]], judge: Reward | None
) -> list[tuple[float | None, float | None]]:
    """The judge's mean scores, by task; nothing of a task without attempts on both sides."""
    found: list[tuple[float | None, float | None]] = [(None, None)] * len(before)
    if judge is None:
        return found
    pairs = {
        place: TrajectoryGroup([*old, *new])
        for place, (old, new) in enumerate(zip(before, after, strict=True))
        if old and new
    }
    groups = await gather_trajectory_groups(pairs.values(), pbar_desc=None, after_each=judge.score_group)
    for place, group in zip(pairs, groups, strict=True):
        scores = [None if isinstance(one.reward, Unscored) else one.reward for one in group]
        old = len(before[place])
        found[place] = mean(scores[:old]), mean(scores[old:])
    return found


async def _measured(attempts: Sequence[Trajectory], measure: Measure | None) -> float | None:
    return None if measure is None else mean([await value_of(one, measure) for one in attempts])


async def _side(
    attempts: Sequence[Sequence[Trajectory]],
    per_task: int,
    figures: Figures,
    measure: Measure | None,
    judged: float | None,
) -> Side:
    flat = [one for row in attempts for one in row]
    return Side(
        attempts=len(flat),
        failed=per_task * len(attempts) - len(flat),
        judged=judged,
        figures=await mean_figures(flat, figures, measure),
    )


def answer_of(trajectory: Trajectory) -> str:
    """What the model said last, or what it called where it said nothing."""
    said: list[Any] = [one for one in trajectory.messages() if one["role"] == "assistant"]
    if not said:
        return ""
    calls = [call.get("function") or {} for call in said[-1].get("tool_calls") or ()]
    called = ", ".join(f"{call.get('name')}({call.get('arguments')})" for call in calls)
    return str(said[-1].get("content") or called)

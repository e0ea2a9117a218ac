"""The policy before and after training, side by side.

The judge sees both sides' rollouts at a task as one group.

An `Estimate` is a mean and how sure it is: its interval of 95 % by Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from art.environments.measure import (
    Figures,
    Measure,
    mean_figures,
    mean_of_known,
    measured_value,
    rollout_metrics,
)
from art.gather import gather_trajectory_groups
from art.tracking.rollout_figures import range_of_scores
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import known_reward

if TYPE_CHECKING:
    from art.rewards.reward import Reward


T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145),
    *(2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048),
    *(2.045, 2.042),
)
"""The 97.5 % quantile of Student's t with 1, 2, ... 30 degrees of freedom."""
Z_975 = 1.959964
"""The same of the normal distribution."""


def t_975(freedom: int) -> float:
    """Returns the 97.5 % quantile of Student's t; above 30 degrees of freedom by the expansion of Cornish and
    Fisher, to 0.0001.

    >>> t_975(2), round(t_975(31), 4), round(t_975(100), 4)
    (4.303, 2.0394, 1.984)
    """
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = Z_975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The mean of independent values, with a 95 % interval by Student's t.

    >>> Estimate.from_values([0.0, 0.2, 0.4])
    Estimate(mean=0.2, low=-0.297, high=0.697, count=3)
    >>> Estimate.from_scores([0.0, 0.2, 0.4])
    Estimate(mean=0.2, low=0.0, high=0.697, count=3)
    """

    mean: float
    low: float | None
    """None where a single value tells nothing of the spread."""
    high: float | None
    count: int

    @classmethod
    def from_scores(cls, scores: Sequence[float]) -> Estimate | None:
        """Returns the estimate of scores, its interval inside the range that all of them lie in: 0 to 1, or
        -1 to 1. Few values say little of their spread, and a mean beyond what each of them keeps is none.
        """
        return cls.from_values(scores, within=range_of_scores(scores))

    @classmethod
    def from_pairs(cls, pairs: Sequence[tuple[float, float]]) -> Estimate | None:
        """Returns the estimate of the second score less the first, inside what their range leaves."""
        low, high = range_of_scores([score for pair in pairs for score in pair])
        return cls.from_values([after - before for before, after in pairs], within=(low - high, high - low))

    @classmethod
    def from_values(
        cls, values: Sequence[float], *, within: tuple[float, float] = (-math.inf, math.inf)
    ) -> Estimate | None:
        """Returns the estimate of the values; None without values. within: the range of their mean."""
        if not values:
            return None
        count, mean = len(values), math.fsum(values) / len(values)
        if count == 1:
            return cls(mean=round(mean, 3), low=None, high=None, count=1)
        variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
        half = t_975(count - 1) * math.sqrt(variance / count)
        low, high = max(mean - half, within[0]), min(mean + half, within[1])
        return cls(mean=round(mean, 3), low=round(low, 3), high=round(high, 3), count=count)

    @property
    def above_zero(self) -> bool:
        """Returns whether the whole interval is."""
        return self.low is not None and self.low > 0

    @property
    def below_zero(self) -> bool:
        """Returns whether the whole interval is."""
        return self.high is not None and self.high < 0

    def signed(self) -> str:
        """Returns the estimate as text: "+0.20 (95 % interval -0.30 to +0.70)"."""
        if self.low is None or self.high is None:
            return f"{self.mean:+.2f} (a single value: no interval)"
        return f"{self.mean:+.2f} (95 % interval {self.low:+.2f} to {self.high:+.2f})"


EVEN = 1e-9
Verdict = Literal["better", "worse", "no difference shown", "not judged"]


@dataclass(frozen=True, kw_only=True)
class ComparisonSide:
    """One side: means over its rollouts of the test tasks."""

    attempts: int
    failed: int
    """Rollouts that ended with an error, which says nothing about the model."""
    judged: float | None = None
    """Mean score over the tasks with a verdict; None: nothing was judged."""
    estimate: Estimate | None = None
    """The same mean with its interval."""
    figures: dict[str, float] = field(default_factory=dict)
    """The mean figures by name: those of rollouts, and `measure`, the true quality, where it is known."""


@dataclass(frozen=True, kw_only=True)
class TaskComparison:
    """One test task: means over the rollouts of each side, None where nothing is known."""

    task: str
    judged_before: float | None
    judged_after: float | None
    measured_before: float | None
    measured_after: float | None
    answer_before: str | None
    """What the model said last in its first rollout; None: there is none."""
    answer_after: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The model before and after its training: the same test tasks, the same seeds, one judgement."""

    before: ComparisonSide
    after: ComparisonSide
    judged: Estimate | None = None
    """Mean over the tasks of what the judge gives after, less before; None: not judged."""
    measured: Estimate | None = None
    """The same of the true quality."""
    wins: int = 0
    """Tasks whose rollouts the judge scored higher after training, on average."""
    ties: int = 0
    losses: int = 0
    unjudged: int = 0
    """Tasks without a verdict on both sides."""
    tasks: tuple[TaskComparison, ...] = ()

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
    rewarded: bool = False,
    figures: Figures = rollout_metrics,
    measure: Measure | None = None,
) -> Comparison:
    """Judge both sides of each task in one group: scores mean something only beside each other.

    per_task: rollouts that were asked for. judge: None judges nothing. rewarded: the rollouts came with their
    rewards, which are compared as they are. Raises what the judge raises.
    """
    verdicts = _mean_rewards(before, after) if rewarded else await _judged(before, after, judge)
    rows = [
        TaskComparison(
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
    measured = [(old, new) for old, new in truth if old is not None and new is not None]
    return Comparison(
        before=await _comparison_side(before, per_task, figures, measure, [old for old, _ in known]),
        after=await _comparison_side(after, per_task, figures, measure, [new for _, new in known]),
        judged=Estimate.from_pairs(known),
        measured=Estimate.from_pairs(measured),
        wins=sum(one > EVEN for one in judged),
        ties=sum(abs(one) <= EVEN for one in judged),
        losses=sum(one < -EVEN for one in judged),
        unjudged=len(rows) - len(judged),
        tasks=tuple(rows),
    )


def _mean_rewards(
    before: Sequence[Sequence[Trajectory]], after: Sequence[Sequence[Trajectory]]
) -> list[tuple[float | None, float | None]]:
    """Mean rewards of both sides, by task."""

    def mean(rollouts: Sequence[Trajectory]) -> float | None:
        return mean_of_known([known_reward(one) for one in rollouts])

    return [(mean(old), mean(new)) for old, new in zip(before, after, strict=True)]


async def _judged(
    before: Sequence[Sequence[Trajectory]], after: Sequence[Sequence[Trajectory]], judge: Reward | None
) -> list[tuple[float | None, float | None]]:
    """The judge's mean scores, by task; nothing of a task without rollouts on both sides."""
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
        scores = [known_reward(one) for one in group]
        old = len(before[place])
        found[place] = mean_of_known(scores[:old]), mean_of_known(scores[old:])
    return found


async def _measured(rollouts: Sequence[Trajectory], measure: Measure | None) -> float | None:
    return (
        None if measure is None else mean_of_known([await measured_value(one, measure) for one in rollouts])
    )


async def _comparison_side(
    rollouts: Sequence[Sequence[Trajectory]],
    per_task: int,
    figures: Figures,
    measure: Measure | None,
    judged: Sequence[float],
) -> ComparisonSide:
    flat = [one for row in rollouts for one in row]
    return ComparisonSide(
        attempts=len(flat),
        failed=per_task * len(rollouts) - len(flat),
        judged=mean_of_known(judged),
        estimate=Estimate.from_scores(judged),
        figures=await mean_figures(flat, figures, measure),
    )


def answer_of(trajectory: Trajectory) -> str:
    """Returns the model's last text, or its last call if there is no text."""
    said: list[Any] = [one for one in trajectory.messages() if one["role"] == "assistant"]
    if not said:
        return ""
    calls = [call.get("function") or {} for call in said[-1].get("tool_calls") or ()]
    called = ", ".join(f"{call.get('name')}({call.get('arguments')})" for call in calls)
    return str(said[-1].get("content") or called)

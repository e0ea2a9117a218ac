"""A sum of rewards with weights, each source kept by name."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from art.errors import ConfigurationError
from art.rewards.reward import GroupScores, Reward, Score, figures, judge, lines, settled
from art.trajectories import TrajectoryGroup
from art.types import Unscored

ALARM = "judge/alarm"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One term of a sum."""

    reward: Reward
    weight: float = 1.0
    optional: bool = False
    """Where this source gives no score, the mean of the group's others stands in: no help and no harm. Where
    it scored none of the group, the part is left out."""


class Weighted(Reward):
    """The sum of weight x value over its parts, which are asked side by side.

    Example: 0.7 * 0.5 (ruler) + 0.3 * 1.0 (form) = 0.65, with metrics `reward/ruler` 0.5, `reward/form` 1.0
    and `reward/<name>` 0.65. Values are taken as they are: nothing is normalised. A part without a score
    leaves the trajectory unscored, unless it is optional and another part has a score.
    """

    def __init__(self, parts: Sequence[Part], *, name: str = "total") -> None:
        """Raises ConfigurationError where two parts, or a part and the sum, have one name, or a weight is no
        finite number.
        """
        self.name = name
        self.parts = tuple(parts)
        names = [name for part in self.parts for name in _names(part.reward)]
        for part in self.parts:
            if not math.isfinite(part.weight):
                raise ConfigurationError(
                    f"weight {part.weight!r} of reward {part.reward.name!r}: a number is needed"
                )
        for taken in names:
            if names.count(taken) > 1 or taken == name:
                raise ConfigurationError(
                    f"two rewards of a sum are called {taken!r}; give one another `name=`: their metrics are "
                    f"`reward/<name>`. Parts: {', '.join(names)}; sum: {name}"
                )

    @classmethod
    def of(cls, reward: Reward) -> Weighted:
        """The reward as a sum of itself; a sum that was given no name of its own stays what it is."""
        if isinstance(reward, Weighted) and reward.name == "total":
            return reward
        return cls((Part(reward=reward),))

    def named(self, name: str) -> Weighted:
        """The same sum with a name of its own: one term in sums of its own."""
        return Weighted(self.parts, name=name)

    def optional(self) -> Weighted:
        """Each of its parts is optional."""
        return Weighted([replace(part, optional=True) for part in self.parts], name=self.name)

    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        return (await self.judge(group)).scores

    async def judge(self, group: TrajectoryGroup) -> GroupScores:
        """Raises BudgetExceededError of a part, when the others have ended."""
        calls = [judge(part.reward, group) for part in self.parts]
        judged = settled(await asyncio.gather(*calls, return_exceptions=True))
        stand_ins = [_mean(one.scores) for one in judged]
        rows = zip(*(one.scores for one in judged), strict=True)
        return GroupScores(
            scores=[self._sum(row, stand_ins) for row in rows],
            metrics=_told_apart({p.reward.name: j.metrics for p, j in zip(self.parts, judged, strict=True)}),
            notes=tuple(note for one in judged for note in one.notes),
        )

    def _sum(self, row: Sequence[Score], stand_ins: Sequence[float]) -> Score:
        total, missing = 0.0, []
        for part, score, stand_in in zip(self.parts, row, stand_ins, strict=True):
            if not isinstance(score.value, Unscored):
                total += part.weight * score.value
            elif part.optional:
                total += part.weight * stand_in
            else:
                missing.append(score.value.reason)
        reasons = [score.value.reason for score in row if isinstance(score.value, Unscored)]
        if len(reasons) == len(row):  # of what nobody scored, a mean of others would be made up
            missing = reasons
        metrics: dict[str, float] = {}
        notes: list[str] = []
        for part, score in zip(self.parts, row, strict=True):
            metrics |= figures(part.reward, score)
            notes += lines(part.reward, score)
        value = Unscored("; ".join(missing)) if missing else total
        return Score(value=value, metrics=metrics, notes=tuple(notes))

    def __mul__(self, weight: float) -> Weighted:
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            return NotImplemented
        if self.name != "total":
            return Weighted.of(self) * weight
        return Weighted([replace(part, weight=part.weight * weight) for part in self.parts])

    def __add__(self, other: Reward | int) -> Weighted:
        if isinstance(other, Reward):
            return Weighted((*Weighted.of(self).parts, *Weighted.of(other).parts))
        return Weighted.of(self) if other == 0 else NotImplemented


def _names(reward: Reward) -> list[str]:
    """Of the metrics that it writes: a sum's parts have their own."""
    inner = reward.parts if isinstance(reward, Weighted) else ()
    return [reward.name, *(name for part in inner for name in _names(part.reward))]


def _told_apart(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Metrics of groups by source, in one: a name that several use gets the source behind it, as in
    `judge/agreement/<source>`. `judge/alarm` rings while one of them does.
    """
    uses = Counter(key for one in metrics.values() for key in one)
    told = {
        key if uses[key] == 1 else f"{key}/{source}": value
        for source, one in metrics.items()
        for key, value in one.items()
    }
    if uses[ALARM] > 1:
        told[ALARM] = max(one.get(ALARM, 0.0) for one in metrics.values())
    return told


def _mean(scores: Sequence[Score]) -> float:
    known = [score.value for score in scores if not isinstance(score.value, Unscored)]
    return fmean(known) if known else 0.0

"""A judge's order of groups whose true order is known."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, cast

from art.errors import ConfigurationError
from art.rewards.judge_view import Scorer, views_of
from art.rewards.reward import Score
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored


@dataclass(frozen=True, kw_only=True)
class CalibrationGroup:
    """Attempts at one scenario and how good they truly are: higher is better, equal has no order.

    trajectories: `Trajectory` objects or lists of plain messages. Example: a good and a bad answer, quality
    (1, 0). Raises ConfigurationError where no pair has an order.
    """

    trajectories: tuple[Trajectory | Sequence[Mapping[str, Any]], ...]
    quality: tuple[float, ...]
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "trajectories", tuple(self.trajectories))
        object.__setattr__(self, "quality", tuple(self.quality))
        if len(self.trajectories) != len(self.quality) or not all(map(math.isfinite, self.quality)):
            raise ConfigurationError(
                f"CalibrationGroup: {len(self.trajectories)} trajectories and quality {self.quality!r}: give "
                "one finite number for each"
            )
        if len(set(self.quality)) < 2:
            raise ConfigurationError(
                f"CalibrationGroup: quality {self.quality!r} orders nothing: give two different numbers"
            )

    def group(self) -> TrajectoryGroup:
        """Returns the group as a judge gets it."""
        return TrajectoryGroup(
            one if isinstance(one, Trajectory) else Trajectory(messages_and_choices=cast("Any", list(one)))
            for one in self.trajectories
        )


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The number of pairs that a judge ordered right; a tie of its own is half right. unscored: pairs without
    both scores, which are in none of the other numbers.
    """

    pairs: int = 0
    right: float = 0.0
    unscored: int = 0

    @property
    def accuracy(self) -> float | None:
        """The accuracy, 0 to 1, 0.5 by chance; None if nothing was scored."""
        return self.right / self.pairs if self.pairs else None

    def __add__(self, other: Calibration) -> Calibration:
        return Calibration(
            pairs=self.pairs + other.pairs,
            right=self.right + other.right,
            unscored=self.unscored + other.unscored,
        )


async def calibrate(scorer: Scorer, groups: Sequence[CalibrationGroup], *, salt: str = "") -> Calibration:
    """Lets the judge score the groups. salt: another one bypasses cached answers.

    Raises what the scorer raises.
    """
    judged = await asyncio.gather(*(scorer.score(views_of(one.group()), salt=salt) for one in groups))
    pairs = (ordered_right(one.quality, scores) for one, scores in zip(groups, judged, strict=True))
    return sum(pairs, Calibration())


def ordered_right(quality: Sequence[float], scores: Sequence[Score]) -> Calibration:
    """Returns the share of correctly ordered pairs of one group."""
    total = Calibration()
    for (better, a), (worse, b) in combinations(zip(quality, scores, strict=True), 2):
        if better == worse:
            continue
        if isinstance(a.value, Unscored) or isinstance(b.value, Unscored):
            total += Calibration(unscored=1)
            continue
        won = (a.value - b.value) * (1 if better > worse else -1)
        total += Calibration(pairs=1, right=0.5 if won == 0 else float(won > 0))
    return total

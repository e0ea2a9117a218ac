"""Which checks a judge undergoes while it trains, and where an alarm rings.

An alarm rings from the group in which a figure passes its limit until it is back. Calibration is a judge's
order of groups whose true order is known.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from itertools import combinations
from pathlib import Path
from typing import Any, cast

from art.errors import ConfigurationError
from art.rewards.judge_view import Scorer
from art.rewards.reward import Reward, Score
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A figure that passed its limit."""

    check: str
    """agreement, holdout, divergence, length or calibration."""
    value: float
    limit: float
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True)
class CheckReading:
    """The current value of a check. value: None if too little is known for an alarm."""

    check: str
    value: float | None
    limit: float | None
    above: bool
    """Rings above the limit; otherwise at and below it."""
    meaning: str
    """What a ringing alarm says, with `{value}` and `{limit}`."""

    @property
    def is_alarming(self) -> bool:
        if self.value is None or self.limit is None:
            return False
        return self.value > self.limit if self.above else self.value <= self.limit


@dataclass
class Alarms:
    """The active alarms; each is reported once when it starts."""

    judge: str
    ringing: set[str] = field(default_factory=set)

    async def update(
        self, readings: list[CheckReading], on_alarm: Callable[[Alarm], Any] | None
    ) -> dict[str, float]:
        """`judge/alarm` (1 while any rings) and `judge/alarm_<check>`; warns and calls for those that began.

        Raises what `on_alarm` raises.
        """
        began = [one for one in readings if one.is_alarming and one.check not in self.ringing]
        self.ringing = {one.check for one in readings if one.is_alarming}
        figures = {f"judge/alarm_{one.check}": float(one.is_alarming) for one in readings}
        for one in began:
            alarm = _alarm(one, self.judge)
            _log.warning("%s", alarm)
            answer = on_alarm(alarm) if on_alarm is not None else None
            if isawaitable(answer):
                await answer
        return {"judge/alarm": float(bool(self.ringing)), **figures}


def _alarm(reading: CheckReading, judge: str) -> Alarm:
    value, limit = reading.value or 0.0, reading.limit or 0.0
    meaning = reading.meaning.format(value=f"{value:.2f}", limit=f"{limit:g}")
    return Alarm(check=reading.check, value=value, limit=limit, message=f"judge {judge!r}: {meaning}")


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
    from art.rewards.judge_view import views_of

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


@dataclass(frozen=True, kw_only=True)
class JudgeChecks:
    """Options of a `JudgeWatch`; docs/guides/judges.md says what each figure means. A limit of None never
    rings.

    Each figure is averaged over a window of groups, and no alarm rings before half a window is known. Raises
    ConfigurationError for values that could not act.
    """

    agreement_share: float = 0.1
    """Share of the groups that the judge scores a second time, in another order."""
    agreement_alarm: float | None = 0.2
    """Rings when the two opinions agree no better: pairs ordered alike less those ordered otherwise, -1 to
    1."""
    holdout: Scorer | Reward | None = None
    """A second judge, the same with another rubric, or a hand-written reward. It trains nothing."""
    holdout_share: float = 0.1
    """Share of the groups that the hold-out scores too; the first group of each policy step always is."""
    holdout_alarm: float | None = 0.1
    """Rings when judge and hold-out contradict each other by more, in scores, 0 to 1."""
    divergence_alarm: float | None = 0.15
    """Rings when the judge's mean has risen above the hold-out's by more than this since the run began."""
    length_alarm: float | None = 0.6
    """Rings when scores within groups grow with the length of what the agent wrote: rank correlation."""
    calibration: tuple[CalibrationGroup, ...] = ()
    """Groups whose true order is known."""
    calibration_every: int = 100
    """They are judged at the first group, and then at every so manieth."""
    calibration_alarm: float | None = 0.7
    """Rings when a smaller share of their pairs is ordered right."""
    window: int = 16
    """Groups over which a figure is averaged; of sampled checks, sampled groups."""
    seed: int = 0
    """Which groups are in the samples: a function of this and their content."""
    record: str | Path | None = None
    """A file, one for each run: with it a resumed run goes on with its windows, each judge by its name with
    its own. None: memory only."""
    on_alarm: Callable[[Alarm], Any] | None = None
    """Called when an alarm begins to ring. What it raises ends the scoring: a way to stop the run."""

    def __post_init__(self) -> None:
        for name in ("agreement_share", "holdout_share"):
            self._require_between(name, 0.0, 1.0)
        for name in ("agreement_alarm", "length_alarm"):
            self._require_between(name, -1.0, 1.0)
        for name in ("holdout_alarm", "divergence_alarm", "calibration_alarm"):
            self._require_between(name, 0.0, 1.0)
        for name, least in (("window", 2), ("calibration_every", 1)):
            if getattr(self, name) < least:
                raise ConfigurationError(
                    f"JudgeChecks({name}={getattr(self, name)!r}): must be at least {least}"
                )
        for group in self.calibration:
            if not isinstance(group, CalibrationGroup):
                raise ConfigurationError(
                    f"JudgeChecks(calibration=...) holds a {type(group).__name__}: use CalibrationGroup("
                    "trajectories=..., quality=...)"
                )
        if not (self.holdout is None or isinstance(self.holdout, Reward) or hasattr(self.holdout, "score")):
            raise ConfigurationError(
                f"JudgeChecks(holdout={self.holdout!r}) scores nothing: give a Scorer or a Reward, such as "
                "Ruler(another_model), Ruler(model, rubric=another) or a verifier"
            )

    def _require_between(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise ConfigurationError(f"JudgeChecks({name}={value!r}): must be from {low:g} to {high:g}")

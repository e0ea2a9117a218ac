"""Which checks a judge undergoes while it trains, and where an alarm rings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError
from art.rewards.checks.alarms import Alarm
from art.rewards.checks.calibration import CalibrationGroup
from art.rewards.judging.scorer import Scorer
from art.rewards.reward import Reward


@dataclass(frozen=True, kw_only=True)
class JudgeChecks:
    """Options of a `JudgeWatch`; docs/judges.md says what each figure means. A limit of None never rings.

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
            self._within(name, 0.0, 1.0)
        for name in ("agreement_alarm", "length_alarm"):
            self._within(name, -1.0, 1.0)
        for name in ("holdout_alarm", "divergence_alarm", "calibration_alarm"):
            self._within(name, 0.0, 1.0)
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

    def _within(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise ConfigurationError(f"JudgeChecks({name}={value!r}): must be from {low:g} to {high:g}")

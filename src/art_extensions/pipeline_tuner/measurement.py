"""The numbers of training steps with one number of workers, and how certain their throughput is."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CERTAIN = 1.5
"""The standard errors that a comparison must be away from its bound to be believed at once."""
ROUNDING = 1e-9
"""What is no more than this is nothing."""


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """The figures of one training step. Workers' seconds are those of all workers together."""

    wall_s: float
    trainer_wait_s: float
    """The seconds in which the trainer waited for groups."""
    worker_busy_s: float
    worker_idle_s: float
    groups: int
    """Groups that the workers finished, less those that failed or came too late."""
    stale: int
    """Groups that came too late."""


@dataclass
class Measurement:
    """The newest steps with one number of workers; older ones are forgotten.

    `groups_per_second` is that of the workers' own seconds, by Little's law: the steps of a pipeline come in
    bursts, of which a few seconds by the clock say little.

    >>> step = {"wall_s": 2, "trainer_wait_s": 1, "worker_busy_s": 6, "worker_idle_s": 2, "stale": 0}
    >>> some = Measurement(workers=4, window_steps=2)
    >>> for _ in range(4):
    ...     some.add(StepFigures(**step, groups=4))
    >>> some.windows, some.groups_per_second, some.trainer_wait_share, some.idle_share
    (2, 2.0, 0.5, 0.25)
    """

    workers: int
    window_steps: int
    most_windows: int = 6
    steps: deque[StepFigures] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = deque(maxlen=self.window_steps * self.most_windows)
        self._added = 0

    def add(self, figures: StepFigures) -> None:
        self.steps.append(figures)
        self._added += 1

    @property
    def windows(self) -> int:
        """Whole windows that are known."""
        return len(self.steps) // self.window_steps

    @property
    def ends_a_window(self) -> bool:
        return self._added % self.window_steps == 0

    @property
    def is_full(self) -> bool:
        """Returns whether more steps would only replace others."""
        return self.windows == self.most_windows

    @property
    def groups_per_second(self) -> float:
        return _ratio(self.workers * self._sum("groups"), self._worker_seconds)

    @property
    def relative_error(self) -> float:
        """The standard error of `groups_per_second`, as a share of it: that of a ratio of sums.

        It is infinite where a single step, or no group, says nothing of the scatter.
        """
        count, groups = len(self.steps), self._sum("groups")
        if count < 2 or groups <= 0 or self._worker_seconds <= 0:
            return math.inf
        each = self._worker_seconds / groups
        squares = sum((one.worker_busy_s + one.worker_idle_s - each * one.groups) ** 2 for one in self.steps)
        return math.sqrt(squares * count / (count - 1)) / self._worker_seconds

    @property
    def trainer_wait_share(self) -> float:
        """The share of the time in which the trainer waited for groups."""
        return _ratio(self._sum("trainer_wait_s"), self._sum("wall_s"))

    @property
    def idle_share(self) -> float:
        """The share of the workers' time in which they waited for the trainer."""
        return _ratio(self._sum("worker_idle_s"), self._worker_seconds)

    @property
    def stale_share(self) -> float:
        """The share of the groups that came too late."""
        return _ratio(self._sum("stale"), self._sum("stale") + self._sum("groups"))

    def is_too_stale(self, target: float) -> bool:
        """Returns whether the share is above the target by more than chance gives: at least two groups, and
        one standard error.
        """
        stale = self._sum("stale")
        came = stale + self._sum("groups")
        error = math.sqrt(target * (1 - target) / came) if came else 0.0
        return stale >= 2 and self.stale_share > target + error

    def to_dict(self) -> Mapping[str, Any]:
        """Returns the numbers for a profile."""
        return {
            "steps": len(self.steps),
            "groups_per_second": self.groups_per_second,
            "trainer_wait_share": self.trainer_wait_share,
            "worker_idle_share": self.idle_share,
            "stale_share": self.stale_share,
        }

    @property
    def _worker_seconds(self) -> float:
        return self._sum("worker_busy_s") + self._sum("worker_idle_s")

    def _sum(self, name: str) -> float:
        return float(sum(getattr(one, name) for one in self.steps))


def is_worth_it(fewer: Measurement, more: Measurement, *, growth: float, last: bool) -> bool | None:
    """Returns whether more workers give more than half of the throughput that their number promises; None
    while the measurements scatter too much to tell, unless this is the last word.

    growth: how many more they are, as a share: 0.125 for 18 workers beside 16.
    """
    if fewer.groups_per_second <= 0:
        return True
    surplus = more.groups_per_second / fewer.groups_per_second - 1 - growth / 2
    if not last and abs(surplus) <= CERTAIN * math.hypot(fewer.relative_error, more.relative_error):
        return None
    return surplus > ROUNDING


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0

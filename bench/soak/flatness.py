"""Whether what was looked at again and again grows: the slope with its interval, and counts that only rise.

Memory is no line with independent errors: an allocator grows in jumps and keeps what it has. So the looks
of a stretch are divided into blocks of equal length, and the line is fitted to the blocks' means, which are
nearly independent (the method of batch means of simulation: Law and Kelton, "Simulation Modeling and
Analysis", chapter 9). The interval is Student's t with the freedom that the blocks leave. Processes that were
started again have a level of their own: each stretch has its own intercept, and one slope is common to all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from art.runs.comparison import t_975

WARM_UP = 0.4
"""The share of a stretch's looks that is left out at its beginning. Of 5,000 steps it is more
than the buffers need to be full (docs/internals/reliability.md lists them)."""
BLOCKS = 10
LEAST_LOOKS = 3
"""Of a stretch after its warm-up: fewer say nothing."""
Look = tuple[float, float]
"""Where (steps or requests done), and how much was seen there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slope:
    """Growth for one unit of `where`, with its interval of 95 %."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Slope:
        return Slope(value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def is_below(self, limit: float) -> bool:
        """Returns whether it is shown that the growth is less than the limit."""
        return self.high < limit

    def is_above(self, limit: float) -> bool:
        """Returns whether it is shown that the growth is more than the limit."""
        return self.low > limit


def warm_looks(stretch: Sequence[Look]) -> list[Look]:
    """Returns the looks of one stretch without those of its warm-up."""
    return list(stretch[math.ceil(len(stretch) * WARM_UP) :])


def slope_of(stretches: Sequence[Sequence[Look]]) -> Slope | None:
    """Returns the common slope of stretches, each the life of one process; None where there are too few
    looks for an interval.
    """
    warm = [found for one in stretches if len(found := warm_looks(one)) >= LEAST_LOOKS]
    looks = sum(map(len, warm))
    blocks = [block for one in warm for block in _block_means(one, round(BLOCKS * len(one) / looks))]
    freedom = len(blocks) - len(warm) - 1
    if freedom < 1:
        return None
    where, seen = (np.array(column) for column in zip(*blocks, strict=True))
    spread = float(where @ where)
    value = float(where @ seen) / spread
    rest = seen - value * where
    error = math.sqrt(float(rest @ rest) / freedom / spread)
    half = t_975(freedom) * error
    return Slope(value=value, low=value - half, high=value + half)


def _block_means(looks: Sequence[Look], count: int) -> list[Look]:
    """Returns the means of so many blocks (at least two), without the level of the stretch."""
    parts = np.array_split(np.array(looks, dtype=float), min(len(looks), max(2, count)))
    means = np.array([part.mean(axis=0) for part in parts])
    centred = means - means.mean(axis=0)
    return [(float(where), float(seen)) for where, seen in centred]


def has_outgrown(stretches: Sequence[Sequence[Look]]) -> bool:
    """Returns whether a count leaks: in some stretch, every look of the last quarter after the warm-up is
    above each look of the first quarter after it. Counts that go up and down do not.
    """
    for stretch in stretches:
        seen = [count for _, count in warm_looks(stretch)]
        quarter = len(seen) // 4
        if quarter and min(seen[-quarter:]) > max(seen[:quarter]):
            return True
    return False

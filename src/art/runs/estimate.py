"""A mean and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145),
    *(2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048),
    *(2.045, 2.042),
)
"""The 97.5 % quantile of Student's t with 1, 2, ... 30 degrees of freedom."""
T_ABOVE = 1.96


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The mean of independent values, with a 95 % interval by Student's t.

    >>> Estimate.of([0.0, 0.2, 0.4])
    Estimate(mean=0.2, low=-0.297, high=0.697, count=3)
    """

    mean: float
    low: float | None
    """None where a single value tells nothing of the spread."""
    high: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate | None:
        """None without values."""
        if not values:
            return None
        count, mean = len(values), math.fsum(values) / len(values)
        if count == 1:
            return cls(mean=round(mean, 3), low=None, high=None, count=1)
        variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
        quantile = T_975[count - 2] if count - 2 < len(T_975) else T_ABOVE
        half = quantile * math.sqrt(variance / count)
        return cls(mean=round(mean, 3), low=round(mean - half, 3), high=round(mean + half, 3), count=count)

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval is."""
        return self.low is not None and self.low > 0

    @property
    def below_zero(self) -> bool:
        """Whether the whole interval is."""
        return self.high is not None and self.high < 0

    def signed(self) -> str:
        """For people: "+0.20 (95 % interval -0.30 to +0.70)"."""
        if self.low is None or self.high is None:
            return f"{self.mean:+.2f} (a single value: no interval)"
        return f"{self.mean:+.2f} (95 % interval {self.low:+.2f} to {self.high:+.2f})"

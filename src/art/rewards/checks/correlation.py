"""Correlation of ranks: whether two judges order alike, whether scores grow with length. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


def ranks(values: Sequence[float]) -> list[float]:
    """Places from 1 in rising order; equal values share the mean of their places.

    >>> ranks([0.5, 0.1, 0.5])
    [2.5, 1.0, 2.5]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    placed = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            placed[place] = (start + 1 + end) / 2
        start = end
    return placed


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, -1 to 1. Where only one of the two ranks at all it is 0; where neither does they agree: 1.

    >>> rank_correlation([0.1, 0.5, 0.9], [2, 3, 7])
    1.0
    """
    shared = covariation(ranks(first), ranks(second))
    if shared.xx == 0 and shared.yy == 0:
        return 1.0
    return shared.correlation() or 0.0


@dataclass(frozen=True, kw_only=True)
class Covariation:
    """Sums of squares and products about the mean. Those of several groups add up: each about its own."""

    xy: float = 0.0
    xx: float = 0.0
    yy: float = 0.0

    def __add__(self, other: Covariation) -> Covariation:
        return Covariation(xy=self.xy + other.xy, xx=self.xx + other.xx, yy=self.yy + other.yy)

    def correlation(self) -> float | None:
        """-1 to 1; None where one side never varies."""
        if self.xx <= 0 or self.yy <= 0:
            return None
        return max(-1.0, min(1.0, self.xy / math.sqrt(self.xx * self.yy)))


def covariation(first: Sequence[float], second: Sequence[float]) -> Covariation:
    """Of paired values; of none, nothing."""
    if not first:
        return Covariation()
    x, y = fmean(first), fmean(second)
    pairs = [(a - x, b - y) for a, b in zip(first, second, strict=True)]
    return Covariation(
        xy=math.fsum(a * b for a, b in pairs),
        xx=math.fsum(a * a for a, _ in pairs),
        yy=math.fsum(b * b for _, b in pairs),
    )

"""Whether two judges order alike, and whether scores grow with length. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

TIE = 0.05
"""Scores that differ by less are as good as equal."""


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


def pair_agreement(first: Sequence[float], second: Sequence[float]) -> float:
    """Whether two opinions order the same values alike, -1 to 1: pairs ordered alike less those ordered the
    other way round, of all pairs. Kendall's tau, but scores that differ by less than `TIE` are as good as
    equal, and pairs that both find equal count as agreed: where nothing differs, noise is no disagreement.

    >>> pair_agreement([0.1, 0.5, 0.9], [0.3, 0.2, 0.7])
    0.3333333333333333
    """
    pairs = list(combinations(zip(first, second, strict=True), 2))
    signs = [(_sign(a - b), _sign(x - y)) for (a, x), (b, y) in pairs]
    return fmean(1.0 if one == other else float(one * other) for one, other in signs)


def pair_conflict(first: Sequence[float], second: Sequence[float]) -> float:
    """How far two opinions contradict each other, in scores: over all pairs the mean of what the surer of the
    two is contradicted by, which is 0 for pairs ordered alike, or a tie to one.

    Noise among equals is small here, a mistake that one makes and the other knows is large.

    >>> pair_conflict([0.9, 0.1], [0.2, 0.6])
    0.4
    """
    pairs = list(combinations(zip(first, second, strict=True), 2))
    products = [(a - b, x - y) for (a, x), (b, y) in pairs]
    return fmean(min(abs(one), abs(other)) if one * other < 0 else 0.0 for one, other in products)


def _sign(difference: float) -> int:
    return 0 if abs(difference) < TIE else 1 if difference > 0 else -1


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

"""Whether two judges order the same trajectories alike, and whether scores grow with length.

Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from art.rewards.judge_view import View
from art.rewards.reward import Score
from art.types import Unscored

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
    """Returns whether two opinions order the same values alike, -1 to 1: pairs ordered alike less those
    ordered the other way round, of all pairs. Kendall's tau, but scores that differ by less than `TIE` are as
    good as equal, and pairs that both find equal count as agreed: where nothing differs, noise is no
    disagreement.

    >>> pair_agreement([0.1, 0.5, 0.9], [0.3, 0.2, 0.7])
    0.3333333333333333
    """
    pairs = list(combinations(zip(first, second, strict=True), 2))
    signs = [(_sign(a - b), _sign(x - y)) for (a, x), (b, y) in pairs]
    return fmean(1.0 if one == other else float(one * other) for one, other in signs)


def pair_conflict(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns how far two opinions contradict each other, in scores: over all pairs the mean of what the
    surer of the two is contradicted by, which is 0 for pairs ordered alike, or a tie to one.

    Noise among equals is small here, a mistake that one makes and the other knows is large.

    >>> round(pair_conflict([0.9, 0.1], [0.2, 0.6]), 3)
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
        """The correlation, -1 to 1; None if one side never varies."""
        if self.xx <= 0 or self.yy <= 0:
            return None
        return max(-1.0, min(1.0, self.xy / math.sqrt(self.xx * self.yy)))


def covariation(first: Sequence[float], second: Sequence[float]) -> Covariation:
    """Returns the covariation of paired values; without pairs, an empty one."""
    if not first:
        return Covariation()
    x, y = fmean(first), fmean(second)
    pairs = [(a - x, b - y) for a, b in zip(first, second, strict=True)]
    return Covariation(
        xy=math.fsum(a * b for a, b in pairs),
        xx=math.fsum(a * a for a, _ in pairs),
        yy=math.fsum(b * b for _, b in pairs),
    )


class ScorePair(NamedTuple):
    """The scores of two judges for one trajectory."""

    first: float
    second: float


def scored_by_both(first: Sequence[Score], second: Sequence[Score]) -> list[ScorePair]:
    """Leaves out trajectories that one of the judges could not score."""
    return [
        ScorePair(float(a.value), float(b.value))
        for a, b in zip(first, second, strict=True)
        if not isinstance(a.value, Unscored) and not isinstance(b.value, Unscored)
    ]


def agreement(pairs: Sequence[ScorePair]) -> dict[str, float]:
    """Returns the figures of one judge in two orders: `agreement` (of pairs) and `order_difference` (mean
    absolute).
    """
    if len(pairs) < 2:
        return {}
    first, second = zip(*pairs, strict=True)
    return {
        "agreement": pair_agreement(first, second),
        "order_difference": fmean(abs(a - b) for a, b in pairs),
    }


def holdout_gap(pairs: Sequence[ScorePair]) -> dict[str, float]:
    """Returns the figures of judge and hold-out: `holdout` (its mean), `holdout_gap` (the judge's mean less
    it), `holdout_agreement` and `holdout_conflict` (of pairs).
    """
    if not pairs:
        return {}
    mean = fmean(b for _, b in pairs)
    figures = {"holdout": mean, "holdout_gap": fmean(a for a, _ in pairs) - mean}
    if len(pairs) > 1:
        first, second = zip(*pairs, strict=True)
        figures["holdout_agreement"] = pair_agreement(first, second)
        figures["holdout_conflict"] = pair_conflict(first, second)
    return figures


def length_sums(views: Sequence[View], scores: Sequence[Score]) -> dict[str, float]:
    """Sums of a group from which the correlation of score and length over many groups is made: of ranks as
    shares of the group's size, about the group's own mean, so that groups of any kind can be added up.

    `length_pairs`: how many comparisons it is worth, one less than the trajectories. Nothing where all
    lengths or all scores are equal.
    """
    known = [(v.length, s.value) for v, s in zip(views, scores, strict=True) if isinstance(s.value, float)]
    if len(known) < 2:
        return {}
    lengths, values = ([r / len(known) for r in ranks(side)] for side in zip(*known, strict=True))
    shared = covariation(lengths, values)
    if shared.correlation() is None:
        return {}
    return {
        "length_xy": shared.xy,
        "length_xx": shared.xx,
        "length_yy": shared.yy,
        "length_pairs": len(known) - 1.0,
    }

"""Two opinions on the same trajectories, side by side. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from art.rewards.checks.correlation import covariation, pair_agreement, pair_conflict, ranks
from art.rewards.judging.view import View
from art.rewards.reward import Score
from art.types import Unscored


class Pair(NamedTuple):
    """What two judges gave one trajectory."""

    first: float
    second: float


def scored_by_both(first: Sequence[Score], second: Sequence[Score]) -> list[Pair]:
    """Without those that either could not score."""
    return [
        Pair(float(a.value), float(b.value))
        for a, b in zip(first, second, strict=True)
        if not isinstance(a.value, Unscored) and not isinstance(b.value, Unscored)
    ]


def agreement(pairs: Sequence[Pair]) -> dict[str, float]:
    """Of one judge in two orders: `agreement` (of pairs) and `order_difference` (mean absolute)."""
    if len(pairs) < 2:
        return {}
    first, second = zip(*pairs, strict=True)
    return {
        "agreement": pair_agreement(first, second),
        "order_difference": fmean(abs(a - b) for a, b in pairs),
    }


def holdout_gap(pairs: Sequence[Pair]) -> dict[str, float]:
    """Of judge and hold-out: `holdout` (its mean), `holdout_gap` (the judge's mean less it),
    `holdout_agreement` and `holdout_conflict` (of pairs)."""
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

"""How sure a mean is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from art.runs.comparison import Estimate, t_975


def test_intervals_are_those_of_students_t() -> None:
    assert Estimate.from_values([]) is None
    one = Estimate.from_values([0.5])
    assert one is not None and one.low is None and not one.above_zero and "a single value" in one.signed()
    few = Estimate.from_values([0.1, 0.2, 0.3, 0.4, 0.5])
    assert few is not None and (few.low, few.high) == (0.104, 0.496)  # 0.3 -+ 2.776 * 0.1581 / sqrt(5)
    many = Estimate.from_values([0.0, 1.0] * 50)
    assert many is not None and (many.low, many.high) == (0.4, 0.6)


def test_an_interval_stays_inside_the_range_of_its_score() -> None:
    """Two values of 0 to 1 gave -5.0 to 6.0."""
    share, sides = Estimate.from_scores([0.1, 0.95]), Estimate.from_scores([-0.9, 0.8])
    assert share is not None and (share.low, share.high) == (0.0, 1.0)
    assert sides is not None and (sides.low, sides.high) == (-1.0, 1.0)
    points, plain = Estimate.from_scores([0.0, 7.0]), Estimate.from_values([0.0, 7.0])
    assert points == plain, "a score without a known range keeps its interval"
    gained = Estimate.from_pairs([(0.0, 0.9), (0.8, 0.1)])
    assert gained is not None and (gained.mean, gained.low, gained.high) == (0.1, -1.0, 1.0)
    better = Estimate.from_pairs([(0.1, 0.5), (0.2, 0.9)])
    assert better is not None and better.low is not None and better.low < 0 and not better.above_zero
    none = Estimate.from_pairs([])
    assert none is None


@pytest.mark.parametrize("freedom", [1, 2, 7, 30, 31, 45, 99, 1000])
def test_the_quantile_leaves_a_fortieth_of_the_density_above_it(freedom: int) -> None:
    """By the integral of Student's density from 0 to the quantile, which is 0.475."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    x = np.linspace(0, t_975(freedom), 200_001)
    density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert float(np.trapezoid(density, x)) == pytest.approx(0.475, abs=1e-4)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    draws = np.random.default_rng(0).normal(0.3, 1.0, (4000, 40))
    found = [Estimate.from_values(row.tolist()) for row in draws]
    held = [one is not None and one.low is not None and one.low <= 0.3 <= (one.high or 0.0) for one in found]
    assert np.mean(held) == pytest.approx(0.95, abs=0.011)

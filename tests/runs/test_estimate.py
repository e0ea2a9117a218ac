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

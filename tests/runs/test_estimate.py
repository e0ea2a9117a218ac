"""How sure a mean is."""

from __future__ import annotations

from art.runs.comparison import Estimate


def test_intervals_are_those_of_students_t() -> None:
    assert Estimate.from_values([]) is None
    one = Estimate.from_values([0.5])
    assert one is not None and one.low is None and not one.above_zero and "a single value" in one.signed()
    few = Estimate.from_values([0.1, 0.2, 0.3, 0.4, 0.5])
    assert few is not None and (few.low, few.high) == (0.104, 0.496)  # 0.3 -+ 2.776 * 0.1581 / sqrt(5)
    many = Estimate.from_values([0.0, 1.0] * 50)
    assert many is not None and (many.low, many.high) == (0.402, 0.598)

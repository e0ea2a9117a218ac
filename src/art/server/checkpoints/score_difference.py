"""The difference of the logprobs that engine and trainer compute for the same ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from art.errors import CanaryError

Rows = Sequence[Sequence[int]]
Scores = Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class ScoreDifference:
    """Mean, 99th percentile and max of |a - b| over all tokens of the rows."""

    mean: float
    p99: float
    max: float


def score_difference(a: Scores, b: Scores) -> ScoreDifference:
    """Raises CanaryError when the shapes differ.

    >>> score_difference([[-1.0, -2.0]], [[-1.0, -2.5]])
    ScoreDifference(mean=0.25, p99=0.5, max=0.5)
    """
    if [len(row) for row in a] != [len(row) for row in b]:
        raise CanaryError(
            f"the engine scored rows of {[len(row) for row in a]} tokens, the trainer "
            f"{[len(row) for row in b]}"
        )
    gaps = [abs(x - y) for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)]
    # A NaN compares as false with everything: it must count as the worst.
    gaps = sorted(gap if gap == gap else math.inf for gap in gaps) or [0.0]
    return ScoreDifference(
        mean=sum(gaps) / len(gaps), p99=gaps[math.ceil(0.99 * len(gaps)) - 1], max=gaps[-1]
    )

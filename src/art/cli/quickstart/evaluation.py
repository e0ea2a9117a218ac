"""What a number of attempts amount to: means with their standard errors, and the attempts themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Means over attempts at fresh scenarios.

    >>> Evaluation.of([{"reward": 1.0, "not_lost": 1.0}, {"reward": -1.0, "not_lost": 0.0}]).means
    {'reward': 0.0, 'not_lost': 0.5}
    """

    attempts: int
    means: dict[str, float]
    """By name: the reward and every metric of the task."""
    errors: dict[str, float]
    """Standard error of each mean."""

    @classmethod
    def of(cls, rows: Sequence[dict[str, float]]) -> Evaluation:
        if not rows:
            raise ValueError("an evaluation needs at least one attempt")
        names = list(rows[0])
        means = {name: sum(row[name] for row in rows) / len(rows) for name in names}
        errors = {name: _standard_error([row[name] for row in rows], means[name]) for name in names}
        return cls(attempts=len(rows), means=means, errors=errors)

    def to_json(self) -> dict[str, Any]:
        return {**self.means, "attempts": self.attempts, "standard_errors": self.errors}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Evaluation:
        means = {name: value for name, value in data.items() if name not in {"attempts", "standard_errors"}}
        return cls(attempts=data["attempts"], means=means, errors=data["standard_errors"])


def _standard_error(values: Sequence[float], mean: float) -> float:
    return math.sqrt(sum((value - mean) ** 2 for value in values)) / len(values)

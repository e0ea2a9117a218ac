"""The canary: do fixed ids score the same in the engine as in the trainer, and did the adapter really change?

Two questions are answered before a step is served:

    agreement   |engine - trainer| of the new step     mean and max below their limits
    movement    the trainer's scores moved since the step before, so the engine's must not be bit-equal to
    the old ones

The second catches what the first cannot see: an engine that still serves the old weights after a small
update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from art.errors import CanaryError

Rows = Sequence[Sequence[int]]
Scores = Sequence[Sequence[float]]

_VISIBLE = 1e-5
"""A change of a float32 logprob that is no rounding."""


@dataclass(frozen=True, kw_only=True)
class CanaryLimits:
    """Largest allowed |engine - trainer| of logprobs, in nats."""

    mean: float
    max: float


FLOAT32 = CanaryLimits(mean=2e-4, max=1e-3)
LOW_PRECISION = CanaryLimits(mean=5e-2, max=1.0)
"""bfloat16 kernels of two implementations differ by up to 0.15 nats a token; wrong weights by far more."""


def limits_for(dtypes: Iterable[str]) -> CanaryLimits:
    """The limits that fit the less precise of the dtypes."""
    return FLOAT32 if all("float32" in dtype for dtype in dtypes) else LOW_PRECISION


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Mean and max of |a - b| over all tokens of the rows."""

    mean: float
    max: float


def check_finite(adapter: str, trainer: Scores) -> None:
    """Raises CanaryError where the trainer itself computes NaN or infinity with an adapter."""
    flawed = sum(not math.isfinite(score) for row in trainer for score in row)
    if flawed:
        raise CanaryError(
            f"adapter {adapter!r} gives no probabilities: {flawed} of {sum(map(len, trainer))} logprobs are "
            "NaN or infinite, so its weights hold NaN or infinity, or overflow. A step before it can be "
            "served again: delete this one, or train with a smaller learning rate."
        )


def difference(a: Scores, b: Scores) -> Difference:
    """Raises CanaryError when the shapes differ.

    >>> difference([[-1.0, -2.0]], [[-1.0, -2.5]])
    Difference(mean=0.25, max=0.5)
    """
    if [len(row) for row in a] != [len(row) for row in b]:
        raise CanaryError(
            f"the engine scored rows of {[len(row) for row in a]} tokens, the trainer "
            f"{[len(row) for row in b]}"
        )
    gaps = [abs(x - y) for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)]
    # A NaN compares as false with everything: it must count as the worst.
    gaps = [gap if gap == gap else float("inf") for gap in gaps]
    return Difference(mean=sum(gaps) / max(1, len(gaps)), max=max(gaps, default=0.0))


@dataclass(frozen=True, kw_only=True)
class Canary:
    """Rows of ids, with both scores under the step before (None: nothing is known of it, agreement alone
    counts).
    """

    rows: Rows
    engine_before: Mapping[int, Scores] | None = None
    """By the number of the replica."""
    trainer_before: Scores | None = None

    def check(
        self, adapter: str, engines: Mapping[int, Scores], trainer: Scores, limits: CanaryLimits
    ) -> Difference:
        """The difference of engine and trainer under the new step: that of the replica where it is largest.

        Raises CanaryError with the numbers and the likely cause.
        """
        before = self.engine_before or {}
        differences = [
            self._check(adapter, engine, trainer, limits, before.get(number))
            for number, engine in engines.items()
        ]
        return max(differences, key=lambda one: one.max)

    def _check(
        self, adapter: str, engine: Scores, trainer: Scores, limits: CanaryLimits, before: Scores | None
    ) -> Difference:
        agreement = difference(engine, trainer)
        if agreement.mean > limits.mean or agreement.max > limits.max:
            raise CanaryError(
                f"adapter {adapter!r} does not compute in the engine what the trainer computes: "
                f"logprobs differ by "
                f"{agreement.mean:.3g} in the mean (limit {limits.mean:g}) and {agreement.max:.3g} at "
                f"most (limit "
                f"{limits.max:g}). {_cause(engine, before)}"
            )
        if before is not None and self.trainer_before is not None:
            moved = difference(trainer, self.trainer_before).max
            if moved > _VISIBLE and difference(engine, before).max == 0.0:
                raise CanaryError(
                    f"adapter {adapter!r} is loaded but the engine still computes the step before: "
                    f"the trainer's "
                    f"logprobs moved by up to {moved:.3g}, the engine's not at all"
                )
        return agreement


def _cause(engine: Scores, before: Scores | None) -> str:
    if before is not None and difference(engine, before).max == 0.0:
        return "The engine still computes the step before: the new adapter had no effect."
    return (
        "Likely causes: the engine's base model, dtype or LoRA scaling is not the trainer's. "
        "The step before is still served."
    )


def canary_rows(sequences: Iterable[Sequence[int]], *, rows: int = 4, tokens: int = 64) -> list[list[int]]:
    """The ends of the first few distinct sequences: a canary must be cheap."""
    chosen: dict[tuple[int, ...], None] = {}
    for sequence in sequences:
        cut = tuple(sequence[-tokens:])
        if len(cut) >= 2:
            chosen[cut] = None
        if len(chosen) == rows:
            break
    return [list(row) for row in chosen]

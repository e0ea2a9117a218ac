"""The canary: before a step is served, engine and trainer must score fixed ids alike under it.

Two questions are answered. The rows stay the same from step to step, so that the scores after one step are
those before the next.

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
from art.server.checkpoints.score_difference import Rows, ScoreDifference, Scores, score_difference

_VISIBLE = 1e-5
"""A change of a float32 logprob that is no rounding."""


@dataclass(frozen=True, kw_only=True)
class CanaryLimits:
    """Largest allowed |engine - trainer| of logprobs, in nats."""

    mean: float
    max: float


CANARY_FLOAT32 = CanaryLimits(mean=2e-4, max=1e-3)
CANARY_LOW_PRECISION = CanaryLimits(mean=5e-2, max=1.0)
"""bfloat16 kernels of two implementations differ by up to 0.15 nats a token; wrong weights by far more."""


def canary_limits(dtypes: Iterable[str]) -> CanaryLimits:
    """The limits that fit the less precise of the dtypes."""
    return CANARY_FLOAT32 if all("float32" in dtype for dtype in dtypes) else CANARY_LOW_PRECISION


def check_finite(adapter: str, trainer: Scores) -> None:
    """Raises CanaryError where the trainer itself computes NaN or infinity with an adapter."""
    flawed = sum(not math.isfinite(score) for row in trainer for score in row)
    if flawed:
        raise CanaryError(
            f"adapter {adapter!r} gives no probabilities: {flawed} of {sum(map(len, trainer))} logprobs are "
            "NaN or infinite, so its weights hold NaN or infinity, or overflow. A step before it can be "
            "served again: delete this one, or train with a smaller learning rate."
        )


@dataclass(frozen=True, kw_only=True)
class Canary:
    """Rows of ids, with both scores under the step before (None: nothing is known of it, agreement alone
    counts).
    """

    rows: Rows
    engine_before: Mapping[int, Scores] | None = None
    """The engine's scores under the step before, by the number of the replica."""
    trainer_before: Scores | None = None

    def check(
        self, adapter: str, engines: Mapping[int, Scores], trainer: Scores, limits: CanaryLimits
    ) -> ScoreDifference:
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
    ) -> ScoreDifference:
        agreement = score_difference(engine, trainer)
        if agreement.mean > limits.mean or agreement.max > limits.max:
            raise CanaryError(
                f"adapter {adapter!r} does not compute in the engine what the trainer computes: "
                f"logprobs differ by "
                f"{agreement.mean:.3g} in the mean (limit {limits.mean:g}) and {agreement.max:.3g} at "
                f"most (limit "
                f"{limits.max:g}). {_cause(engine, before)}"
            )
        if before is not None and self.trainer_before is not None:
            moved = score_difference(trainer, self.trainer_before).max
            if moved > _VISIBLE and score_difference(engine, before).max == 0.0:
                raise CanaryError(
                    f"adapter {adapter!r} is loaded but the engine still computes the step before: "
                    f"the trainer's "
                    f"logprobs moved by up to {moved:.3g}, the engine's not at all"
                )
        return agreement


def next_canary(canary: Canary, engines: Mapping[int, Scores], trainer: Scores) -> Canary | None:
    """The canary of the next step: the same rows, with the scores that this step was found to have.

    None where the trainer's scores of these rows did not move: other rows are to show the next step.
    """
    before = canary.trainer_before
    if before is not None and score_difference(trainer, before).max <= _VISIBLE:
        return None
    return Canary(rows=canary.rows, engine_before=dict(engines), trainer_before=trainer)


def _cause(engine: Scores, before: Scores | None) -> str:
    if before is not None and score_difference(engine, before).max == 0.0:
        return "The engine still computes the step before: the new adapter had no effect."
    return (
        "Likely causes: the engine's base model, dtype or LoRA scaling is not the trainer's. "
        "The step before is still served."
    )


def canary_rows(sequences: Iterable[Sequence[int]], *, rows: int = 4, tokens: int = 16) -> list[list[int]]:
    """The ends of the first few distinct sequences, behind their images: a canary must be cheap."""
    chosen: dict[tuple[int, ...], None] = {}
    for sequence in sequences:
        cut = tuple(sequence[-tokens:])
        images = [at for at, one in enumerate(cut) if one < 0]
        cut = cut[images[-1] + 1 :] if images else cut
        if len(cut) >= 2:
            chosen[cut] = None
        if len(chosen) == rows:
            break
    return [list(row) for row in chosen]

"""Checks that sampler and trainer compute the same: the parity gate at the start, the canary before each step
is served.

The canary: two questions about fixed ids are answered before a step is served. The rows stay the same from
step to step, so that the scores after one step are those before the next.

    agreement   |engine - trainer| of the new step     mean and max below their limits
    movement    the trainer's scores moved since the step before, so the engine's must not be bit-equal to
                the old ones

The second catches what the first cannot see: an engine that still serves the old weights after a small
update.

The parity gate: the trainer makes a LoRA of the model's shape whose B is random, not zero, so that the whole
path of an adapter is seen: written, loaded, applied. Both score the same fixed ids under the base and under
this probe, on every replica. What differs tells the likely cause.

    base differs                          weights, dtype, positions, temperature
    base agrees, probe = base in engine   the adapter had no effect
    base agrees, probe is off by a factor its scaling
    base agrees, probe differs            its target modules or rank
"""

from __future__ import annotations

import logging
import math
import random
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from art.engine.replicas.pool import EnginePool
from art.errors import CanaryError, ParityError
from art.wire.training import LoraSpec, ProbeReply

Rows = Sequence[Sequence[int]]
Scores = Sequence[Sequence[float]]

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


@dataclass(frozen=True, kw_only=True)
class ScoreDifference:
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


def score_difference(a: Scores, b: Scores) -> ScoreDifference:
    """Raises CanaryError when the shapes differ.

    >>> score_difference([[-1.0, -2.0]], [[-1.0, -2.5]])
    ScoreDifference(mean=0.25, max=0.5)
    """
    if [len(row) for row in a] != [len(row) for row in b]:
        raise CanaryError(
            f"the engine scored rows of {[len(row) for row in a]} tokens, the trainer "
            f"{[len(row) for row in b]}"
        )
    gaps = [abs(x - y) for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)]
    # A NaN compares as false with everything: it must count as the worst.
    gaps = [gap if gap == gap else float("inf") for gap in gaps]
    return ScoreDifference(mean=sum(gaps) / max(1, len(gaps)), max=max(gaps, default=0.0))


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


_log = logging.getLogger(__name__)

TOKENS = (64, 16, 16, 16)
"""Scored tokens of each row: one sees positions far from the first, the others are other texts."""
_SEED = 20
_ALIKE = 0.9
"""Correlation from which an adapter's effect is taken for another one times a factor."""
_SAME_LOGITS = 0.995
"""Correlation from which logprobs are taken for others at another temperature."""


@dataclass(frozen=True, kw_only=True)
class ParityLimits:
    """Largest allowed |engine - trainer| of logprobs, in nats."""

    mean: float
    p99: float


PARITY_FLOAT32 = ParityLimits(mean=2e-4, p99=1e-3)
PARITY_LOW_PRECISION = ParityLimits(mean=1e-1, p99=0.75)
"""On random ids, whose logprobs are far from 0 and so differ more than those of sampled ones."""


@dataclass(frozen=True, kw_only=True)
class Parity:
    """The difference between engine and trainer, on the replica with the largest one; in nats."""

    lora: str
    tokens: int
    base_mean: float
    base_p99: float
    mean: float
    """On the adapter's path; without an adapter (all weights are trained) as the base's."""
    p99: float
    limits: ParityLimits
    cause: str = ""
    """Of a difference above the limits."""

    def row(self) -> dict[str, Any]:
        """Returns the row for the health route."""
        return {
            "lora": self.lora,
            "tokens": self.tokens,
            "logprob_difference_mean": self.mean,
            "logprob_difference_p99": self.p99,
            "base_difference_mean": self.base_mean,
            "base_difference_p99": self.base_p99,
            "limit_mean": self.limits.mean,
            "limit_p99": self.limits.p99,
            "ok": not self.cause,
        }


class ParityWorkers(Protocol):
    """The interface of the workers that the gate uses (`art.server.workers.base_model.BaseModelWorkers`)."""

    @property
    def engine(self) -> EnginePool: ...
    async def probe(self, lora: LoraSpec | None, path: Path, rows: Rows) -> ProbeReply: ...
    async def dtypes(self) -> list[str]: ...


async def measure_parity(
    sides: ParityWorkers,
    lora: LoraSpec | None,
    greeting: Sequence[int],
    *,
    vocab_size: int,
    max_context: int,
    folder: Path,
) -> Parity:
    """Compare engine and trainer. `folder` is made for the probe and removed again.

    Raises WorkerError, and what loading an adapter raises.
    """
    rows = [row[:max_context] for row in probe_rows(greeting, vocab_size)]
    limits = (
        PARITY_FLOAT32 if all("float32" in dtype for dtype in await sides.dtypes()) else PARITY_LOW_PRECISION
    )
    try:
        trainer = await sides.probe(lora, folder, rows)
        base = await sides.engine.score_each(None, rows)
        if trainer.probe is None:
            probed, right = base, trainer.base
        else:
            name, right = f"parity/probe@{secrets.token_hex(6)}", trainer.probe
            await sides.engine.load_adapter(name, folder)
            try:
                probed = await sides.engine.score_each(name, rows)
            finally:
                await sides.engine.unload_adapter(name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    base_mean, base_p99 = _worst(base, trainer.base)
    mean, p99 = _worst(probed, right)
    cause = ""
    if mean > limits.mean or p99 > limits.p99 or base_mean > limits.mean or base_p99 > limits.p99:
        number = max(probed, key=lambda one: difference_figures(probed[one], right)[0])
        cause = likely_cause(base[number], trainer.base, probed[number], right, limits)
    return Parity(
        lora=_spelled(lora),
        tokens=sum(len(row) - 1 for row in rows),
        base_mean=base_mean,
        base_p99=base_p99,
        mean=mean,
        p99=p99,
        limits=limits,
        cause=cause,
    )


def judge_parity(parity: Parity, base_model: str, *, refuse: bool) -> None:
    """Log what was measured. Raises ParityError when it is above the limits and `refuse`."""
    told = (
        f"{base_model}, {parity.lora}: engine and trainer differ by {parity.mean:.2g} in the mean, "
        f"{parity.p99:.2g} at the 99th percentile of {parity.tokens} logprobs (without an adapter "
        f"{parity.base_mean:.2g} and {parity.base_p99:.2g}; limits {parity.limits.mean:g} and "
        f"{parity.limits.p99:g})"
    )
    if not parity.cause:
        _log.info("parity: %s", told)
        return
    if not refuse:
        _log.error("parity: %s. Likely cause: %s", told, parity.cause)
        return
    raise ParityError(
        f"{told}. Likely cause: {parity.cause}. What is sampled would not be what is trained; the setting "
        "control.parity = 'warn' starts all the same"
    )


def probe_rows(greeting: Sequence[int], vocab_size: int) -> list[list[int]]:
    """Fixed ids: what a chat begins with, then anything from the vocabulary."""
    drawn = random.Random(_SEED)
    starts = [list(greeting)[: tokens // 2] for tokens in TOKENS]
    return [
        [*start, *drawn.choices(range(vocab_size), k=tokens + 1 - len(start))]
        for start, tokens in zip(starts, TOKENS, strict=True)
    ]


def difference_figures(one: Scores, other: Scores) -> tuple[float, float]:
    """Mean and 99th percentile of |a - b|.

    >>> difference_figures([[-1.0, -2.0]], [[-1.0, -2.5]])
    (0.25, 0.5)
    """
    gaps = sorted(abs(a - b) if a - b == a - b else math.inf for a, b in _pairs(one, other))
    return sum(gaps) / len(gaps), gaps[min(len(gaps) - 1, math.ceil(0.99 * len(gaps)) - 1)]


def likely_cause(
    base_engine: Scores, base_trainer: Scores, engine: Scores, trainer: Scores, limits: ParityLimits
) -> str:
    """Returns the likely cause of the differences."""
    mean, p99 = difference_figures(base_engine, base_trainer)
    if mean > limits.mean or p99 > limits.p99:
        factor, alike = _fit(base_trainer, base_engine)
        if alike > _SAME_LOGITS and abs(factor - 1) > 0.05:
            return (
                f"the base model's logprobs in the engine are about {factor:.2f} times the trainer's: a "
                "temperature, or another scaling of the logits, is applied when ids are scored"
            )
        return (
            "they differ without an adapter, too: other weights (another revision, a quantised copy), a "
            "lower dtype, other positions (rope scaling), or a vocabulary of another size"
        )
    if difference_figures(engine, base_engine)[1] == 0.0:
        return "the adapter had no effect in the engine: LoRA is off there, or none of its targets exists"
    moved_engine, moved_trainer = _minus(engine, base_engine), _minus(trainer, base_trainer)
    factor, alike = _fit(moved_trainer, moved_engine)
    if alike > _ALIKE and abs(factor - 1) > 0.05:
        return (
            f"the adapter's effect in the engine is about {factor:.2f} times that in the trainer: its "
            "scaling (alpha / r, or alpha / sqrt(r) with use_rslora) is read differently"
        )
    return (
        "the base models agree, the adapter is applied differently: to fewer target modules, with a "
        "truncated rank, or in a lower dtype"
    )


def _fit(x: Scores, y: Scores) -> tuple[float, float]:
    """The factor of y over x, as a regression has it, and their correlation."""
    pairs = list(_pairs(x, y))
    x_mean, y_mean = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    xy = sum((a - x_mean) * (b - y_mean) for a, b in pairs)
    xx, yy = sum((a - x_mean) ** 2 for a, _ in pairs), sum((b - y_mean) ** 2 for _, b in pairs)
    return (xy / xx, xy / math.sqrt(xx * yy)) if xx and yy else (0.0, 0.0)


def _minus(one: Scores, other: Scores) -> list[list[float]]:
    return [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(one, other, strict=True)]


def _pairs(one: Scores, other: Scores) -> Iterator[tuple[float, float]]:
    for x, y in zip(one, other, strict=True):
        yield from zip(x, y, strict=True)


def _worst(engines: Mapping[int, Scores], trainer: Scores) -> tuple[float, float]:
    measured = [difference_figures(scores, trainer) for scores in engines.values()]
    return max(mean for mean, _ in measured), max(p99 for _, p99 in measured)


def _spelled(lora: LoraSpec | None) -> str:
    return "all weights" if lora is None else f"LoRA r={lora.r} alpha={lora.alpha:g} rslora={lora.use_rslora}"

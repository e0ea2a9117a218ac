"""The parity gate: before a model is served, sampler and trainer must compute the same.

The trainer makes a LoRA of the model's shape whose B is random, not zero, so that the whole path of an
adapter is seen: written, loaded, applied. Both score the same fixed ids under the base and under this probe,
on every replica. What differs tells the likely cause.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from art.engine.replicas.pool import EnginePool
from art.errors import ParityError
from art.server.checkpoints.score_difference import Rows, Scores, score_difference
from art.wire.training import LoraSpec, ProbeReply

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
    """The likely cause of a difference above the limits; empty: no difference is above them."""

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
        number = max(probed, key=lambda one: score_difference(probed[one], right).mean)
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
    found = (
        f"{base_model}, {parity.lora}: engine and trainer differ by {parity.mean:.2g} in the mean, "
        f"{parity.p99:.2g} at the 99th percentile of {parity.tokens} logprobs (without an adapter "
        f"{parity.base_mean:.2g} and {parity.base_p99:.2g}; limits {parity.limits.mean:g} and "
        f"{parity.limits.p99:g})"
    )
    if not parity.cause:
        _log.info("parity: %s", found)
        return
    if not refuse:
        _log.error("parity: %s. Likely cause: %s", found, parity.cause)
        return
    raise ParityError(
        f"{found}. Likely cause: {parity.cause}. What is sampled would not be what is trained; the setting "
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


def likely_cause(
    base_engine: Scores, base_trainer: Scores, engine: Scores, trainer: Scores, limits: ParityLimits
) -> str:
    """Returns the likely cause of the differences."""
    base = score_difference(base_engine, base_trainer)
    if base.mean > limits.mean or base.p99 > limits.p99:
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
    if score_difference(engine, base_engine).p99 == 0.0:
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
    pairs = [pair for rows in zip(x, y, strict=True) for pair in zip(*rows, strict=True)]
    x_mean, y_mean = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    xy = sum((a - x_mean) * (b - y_mean) for a, b in pairs)
    xx, yy = sum((a - x_mean) ** 2 for a, _ in pairs), sum((b - y_mean) ** 2 for _, b in pairs)
    return (xy / xx, xy / math.sqrt(xx * yy)) if xx and yy else (0.0, 0.0)


def _minus(one: Scores, other: Scores) -> list[list[float]]:
    return [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(one, other, strict=True)]


def _worst(engines: Mapping[int, Scores], trainer: Scores) -> tuple[float, float]:
    measured = [score_difference(scores, trainer) for scores in engines.values()]
    return max(one.mean for one in measured), max(one.p99 for one in measured)


def _spelled(lora: LoraSpec | None) -> str:
    return "all weights" if lora is None else f"LoRA r={lora.r} alpha={lora.alpha:g} rslora={lora.use_rslora}"

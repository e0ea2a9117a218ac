"""What a model computes: packed and in rows, in the engine and in the trainer, under ART and under PEFT."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from art.engine.protocol import Engine, GenerateRequest, Sampling
from art.errors import ARTError
from art.process.imports import import_lock
from art.wire.records import Bits
from art.wire.training import LoraSpec
from art_extensions.audit.audit_conversation import AuditVerdict

if TYPE_CHECKING:
    from art_extensions.audit.trainer_side import LogprobDifference, TrainerSide

REFUSALS = (ARTError, OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError)
"""What libraries raise for models that they cannot run."""
LIMITS = {"float64": (1e-6, 1e-4), "float32": (1e-4, 2e-3), "bfloat16": (0.03, 1.0)}
"""Largest mean and largest single difference of logprobs, by the dtype of the weights."""
COMPLETIONS, LENGTH = 4, 24


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditSubject:
    """The model under audit."""

    name: str
    source: str
    """Folder or hub name."""
    device: str = "auto"
    dtype: str = "auto"
    bits: Bits = 16
    """4 or 8: its linear layers are quantized."""


async def computation_verdicts(subject: AuditSubject) -> AsyncIterator[AuditVerdict]:
    """The trainer first: nothing else can be measured where that refuses the model."""
    with import_lock:
        from art_extensions.audit.trainer_side import TrainerSide

    try:
        side = await asyncio.to_thread(
            TrainerSide,
            subject.source,
            name=subject.name,
            device=subject.device,
            dtype=subject.dtype,
            bits=subject.bits,
        )
    except REFUSALS as error:
        yield refused("trainer", error)
        return
    yield AuditVerdict(level="pass", check="trainer", what=side.describe())
    yield trees(side)
    yield await measured("packed = plain rows", side.precision, side.packed_against_rows)
    try:
        layers = side.attach(LoraSpec())
    except ARTError as error:
        yield refused("LoRA targets", error)
        return
    with tempfile.TemporaryDirectory(prefix="art-audit-") as folder:
        adapter = Path(folder) / "0001"
        side.save(adapter)
        async for verdict in engine_verdicts(subject, side, adapter, layers):
            yield verdict
        yield await peft_verdict(subject, side, adapter)


def trees(side: TrainerSide) -> AuditVerdict:
    reason = side.policy.rows_because
    if reason is None:
        return AuditVerdict(level="pass", check="token trees", what=f"yes ({side.policy.kernel})")
    return AuditVerdict(
        level="note", check="token trees", what=f"no, plain rows that share nothing: {reason}"
    )


async def engine_verdicts(
    subject: AuditSubject, side: TrainerSide, adapter: Path, layers: Sequence[str]
) -> AsyncIterator[AuditVerdict]:
    """The builtin engine under the trainer's adapter."""
    with import_lock:
        from art.engine.builtin.engine import BuiltinEngine
        from art.engine.builtin.peft_folder import read_adapter
        from art_extensions.audit.trainer_side import LogprobDifference
    from art.wire.engine import BuiltinOptions

    try:
        options = BuiltinOptions.model_validate({"device": side.device, "dtype": side.dtype})
        engine = await BuiltinEngine.start(subject.source, options, bits=subject.bits)
    except REFUSALS as error:
        yield refused("engine", error, remedy="serve it with the vLLM engine, if that knows it")
        return
    try:
        await engine.load_adapter("audit@1", adapter)
        yield targets(layers, sorted(read_adapter(adapter).weights))
        rows, sampled = await completions(engine, side.prompts(COMPLETIONS))
        scores = await asyncio.to_thread(side.score, rows)
        ours = [
            value for row, logprobs in zip(scores, sampled, strict=True) for value in row[-len(logprobs) :]
        ]
        theirs = [value for logprobs in sampled for value in logprobs]
        yield judge_difference("sampler = trainer", side.precision, LogprobDifference.between(ours, theirs))
    except REFUSALS as error:
        yield refused("engine", error)
    finally:
        await engine.close()


async def completions(
    engine: Engine, prompts: Sequence[list[int]]
) -> tuple[list[list[int]], list[list[float]]]:
    """Returns whole rows (prompt and completion) and the completions' logprobs, as the engine sampled
    them.
    """
    rows, logprobs = [], []
    for number, prompt in enumerate(prompts):
        ids: list[int] = []
        values: list[float] = []
        request = GenerateRequest(
            request_id=f"audit-{number}",
            adapter="audit@1",
            prompt_ids=prompt,
            sampling=Sampling(max_tokens=LENGTH, seed=number),
        )
        async for delta in engine.generate(request):
            ids += delta.token_ids
            values += delta.logprobs
        rows.append(prompt + ids)
        logprobs.append(values)
    return rows, logprobs


async def peft_verdict(subject: AuditSubject, side: TrainerSide, adapter: Path) -> AuditVerdict:
    with import_lock:
        from art_extensions.audit.trainer_side import LogprobDifference, scored_by_peft

    rows = side.prompts(COMPLETIONS)

    def compare() -> LogprobDifference:
        theirs = scored_by_peft(
            subject.source, adapter, rows, device=side.device, dtype=side.dtype, bits=subject.bits
        )
        return LogprobDifference.between([value for row in side.score(rows) for value in row], theirs)

    return await measured("checkpoint in PEFT", side.precision, compare)


async def measured(check: str, dtype: str, measure: Callable[[], LogprobDifference]) -> AuditVerdict:
    """A difference within its limit, beyond it, or the reason why there is none."""
    try:
        return judge_difference(check, dtype, await asyncio.to_thread(measure))
    except REFUSALS as error:
        return refused(check, error)


def judge_difference(check: str, dtype: str, difference: LogprobDifference) -> AuditVerdict:
    mean, largest = LIMITS[dtype]
    fits = difference.mean <= mean and difference.max <= largest
    return AuditVerdict(
        level="pass" if fits else "fail",
        check=check,
        what=f"|difference of logprobs|: mean {difference.mean:.1e}, max {difference.max:.1e} "
        f"of {difference.count:,} (limits {mean:g}, {largest:g})",
        remedy="" if fits else "what is trained is not what is sampled: do not train this model",
    )


def targets(trainer: Sequence[str], engine: Sequence[str]) -> AuditVerdict:
    kinds = sorted({layer.rpartition(".")[2] for layer in trainer})
    if list(trainer) == list(engine):
        what = f"the same {len(trainer)} layers in trainer and engine: {', '.join(kinds)}"
        return AuditVerdict(level="pass", check="LoRA targets", what=what)
    apart = sorted(set(trainer) ^ set(engine))
    return AuditVerdict(
        level="fail", check="LoRA targets", what=f"only one side adapts {', '.join(apart[:5])}"
    )


def refused(check: str, error: BaseException, remedy: str = "") -> AuditVerdict:
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return AuditVerdict(
        level="fail", check=check, what=f"refused: {type(error).__name__}: {first[:400]}", remedy=remedy
    )

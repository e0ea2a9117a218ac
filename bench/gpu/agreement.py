"""Sampler and trainer on one card, in bfloat16, with a LoRA: do they agree, and how soon is a step served?

    agreement    the engine's logprobs of 32 completions under one prompt, against the trainer's in the tree
    publishing   write a checkpoint, load it into the engine, draw its first token

The base has random weights, so its distributions are wider than a trained model's. `art audit-model` asks the
same of real weights.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.engine.builtin.engine import BuiltinEngine
from art.engine.protocol import GenerateRequest, Sampling
from art.training.policy import load_policy
from art.training.trainer import Trainer
from art.wire.engine import BuiltinOptions
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest
from bench.gpu.decode import decode, randomize
from bench.gpu.results import COPY, Session
from bench.gpu.shapes import Shape, find_shape, model_folder
from bench.gpu.trainer import draw_ids

MODEL = "bench/agreement"
COMPLETIONS, PROMPT, NEW = 32, 512, 128
PUBLISHED = 5


async def sample(engine: BuiltinEngine, prompt: list[int], count: int, new: int) -> list[SampleRow]:
    """Completions under the first adapter, as the ledger would record them."""

    async def one(number: int) -> SampleRow:
        ids: list[int] = []
        logprobs: list[float] = []
        request = GenerateRequest(
            request_id=str(number),
            adapter="m@0",
            prompt_ids=prompt,
            sampling=Sampling(max_tokens=new, seed=number),
        )
        async for delta in engine.generate(request):
            ids += delta.token_ids
            logprobs += delta.logprobs
        return SampleRow(
            sample_id=str(number), prompt_ids=prompt, completion_ids=ids, completion_logprobs=logprobs
        )

    return await asyncio.gather(*(one(number) for number in range(count)))


def train(trainer: Trainer, rows: list[SampleRow]) -> dict[str, float]:
    """One step on these completions; returns its metrics."""
    rollouts = [
        RolloutRow(rollout=row.sample_id, reward=float(n % 2), samples=[row]) for n, row in enumerate(rows)
    ]
    batch = build_batch([GroupRow(rollouts=rollouts)])
    request = TrainRequest(
        model=MODEL,
        step=0,
        optimizer=OptimizerSpec(learning_rate=1e-4),
        normalizer=batch.normalizer,
        sampling=list(batch.sampling),
    )
    return trainer.train(batch.tree, batch.entries, request)


async def measure_publishing(
    session: Session, trainer: Trainer, engine: BuiltinEngine, shape: Shape, prompt: list[int]
) -> None:
    saving, loading, drawing = [], [], []
    for number in range(1, PUBLISHED + 2):
        folder, name = session.work / f"published-{number}", f"m@{number}"
        begin = time.perf_counter()
        trainer.save(MODEL, folder)
        saved = time.perf_counter()
        await engine.load_adapter(name, folder)
        loaded = time.perf_counter()
        drawing.append(await decode(engine, [prompt], 1, name))
        saving.append(saved - begin)
        loading.append(loaded - saved)
    parts = [1000 * statistics.median(times[1:]) for times in (saving, loading, drawing)]
    rate = session.ceiling(COPY)
    size = sum(parameter.numel() for parameter in trainer.parameters(MODEL).values())
    session.record(
        f"{shape.name}: a step's checkpoint to the first token of it",
        sum(parts),
        "ms",
        limit=None if rate is None else 1000 * shape.weight_bytes / (rate * 1e12),
        limit_how=f"one reading of the weights; the LoRA has {size / 1e6:.1f} M parameters",
        note="save {:.0f}, load {:.0f}, first token behind a prompt of {} {:.0f} ms".format(
            *parts[:2], len(prompt), parts[2]
        ),
    )


async def measure(session: Session) -> None:
    count, length, new = (4, 16, 8) if session.dry else (COMPLETIONS, PROMPT, NEW)
    shape = find_shape("qwen3-0.6b", dry=session.dry)
    folder = model_folder(shape, session.work, session.device)
    trainer = Trainer(load_policy(str(folder), name=MODEL, device=session.device, dtype="bfloat16"))
    trainer.open(MODEL, LoraSpec())
    randomize(trainer, MODEL)
    trainer.save(MODEL, session.work / "published-0")
    prompt = draw_ids(shape, length)
    engine = await BuiltinEngine.start(str(folder), BuiltinOptions(device=session.device, dtype="bfloat16"))
    try:
        await engine.load_adapter("m@0", session.work / "published-0")
        metrics = train(trainer, await sample(engine, prompt, count, new))
        for which in ("mean", "p99", "max"):
            session.record(
                f"{shape.name}: sampler and trainer in bfloat16, {which} difference of a logprob",
                metrics[f"loss/logprob_difference_{which}"],
                "nats",
                note=f"{count * new:,} tokens in a tree, kernel {trainer.policy.kernel}",
            )
        await measure_publishing(session, trainer, engine, shape, prompt)
    finally:
        await engine.close()


def main(arguments: list[str]) -> None:
    session, _ = Session.open("agreement", arguments)
    asyncio.run(measure(session))


if __name__ == "__main__":
    main(sys.argv[1:])

"""What the engine said when it sampled is what the trainer computes, on the LoRA path."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tiny_policies import SHAPE, randomize
from transformers import Qwen3Config, Qwen3ForCausalLM

from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.engine.builtin.engine import BuiltinEngine
from art.engine.protocol import GenerateRequest, Sampling
from art.training.policy import load_policy
from art.training.trainer import Trainer
from art.wire.engine import BuiltinOptions
from art.wire.training import LoraSpec, OptimizerSpec, SamplingSpec, TrainRequest

pytestmark = pytest.mark.slow
MODEL = "p/m"
PLAIN = [SamplingSpec()]
PROCESSED = [
    SamplingSpec(temperature=0.7),
    SamplingSpec(temperature=1.3, top_k=5),
    SamplingSpec(top_p=0.8),
    SamplingSpec(temperature=1.2, min_p=0.1),
    SamplingSpec(temperature=0.9, top_k=9, top_p=0.9, min_p=0.02),
    SamplingSpec(),
]


async def sampled(
    base: Path, adapter: Path, prompts: list[list[int]], specs: list[SamplingSpec]
) -> list[SampleRow]:
    """Completions of the engine under an adapter, drawn from the distributions in turn."""
    engine = await BuiltinEngine.start(str(base), BuiltinOptions(threads=1))
    try:
        await engine.load_adapter("m@1", adapter)

        async def one(number: int, prompt: list[int]) -> SampleRow:
            spec = specs[number % len(specs)]
            drawn_with = asdict(spec)
            del drawn_with["masked_by"]  # of the record, not of the request
            ids: list[int] = []
            logprobs: list[float] = []
            candidates = b""
            request = GenerateRequest(
                request_id=str(number),
                adapter="m@1",
                prompt_ids=prompt,
                sampling=Sampling(max_tokens=24, seed=number, **drawn_with),
            )
            async for delta in engine.generate(request):
                ids += delta.token_ids
                logprobs += delta.logprobs
                candidates += delta.candidates
            return SampleRow(
                sample_id=str(number),
                prompt_ids=prompt,
                completion_ids=ids,
                completion_logprobs=logprobs,
                sampling=spec,
                candidates=candidates,
            )

        return await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
    finally:
        await engine.close()


@pytest.mark.parametrize("told", [True, False], ids=["recorded", "computed"])
@pytest.mark.parametrize("specs", [PLAIN, PROCESSED], ids=["plain", "tempered and truncated"])
async def test_to_four_digits_in_float32(tmp_path: Path, specs: list[SamplingSpec], told: bool) -> None:
    """Also where temperature, top_k, top_p and min_p differ from sample to sample under one prompt."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    base = tmp_path / "base"
    Qwen3ForCausalLM(Qwen3Config(**SHAPE, initializer_range=0.3)).save_pretrained(base)
    trainer = Trainer(load_policy(str(base), name="test/tiny"), token_budget=200)
    trainer.open(MODEL, LoraSpec())
    randomize(trainer.parameters(MODEL))
    trainer.save(MODEL, tmp_path / "0001")
    generator = torch.Generator().manual_seed(0)
    shared = torch.randint(0, 23, (40,), generator=generator).tolist()
    tails = torch.randint(0, 23, (12, 5), generator=generator).tolist()
    rows = await sampled(base, tmp_path / "0001", [shared + tail for tail in tails], specs)
    assert any(row.candidates for row in rows) == any(spec.truncates for spec in specs)
    if not told:  # as by an engine that does not
        rows = [replace(row, candidates=b"") for row in rows]
    rollouts = [
        RolloutRow(rollout=row.sample_id, reward=float(n % 2), samples=[row]) for n, row in enumerate(rows)
    ]
    batch = build_batch([GroupRow(rollouts=rollouts)])
    assert len(batch.entries) > 50
    metrics = trainer.train(
        batch.tree,
        batch.entries,
        TrainRequest(
            model=MODEL,
            step=0,
            optimizer=OptimizerSpec(learning_rate=1e-3),
            normalizer=batch.normalizer,
            sampling=list(batch.sampling),
        ),
    )
    assert metrics["loss/logprob_difference_max"] <= 1e-4
    assert metrics["loss/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["loss/entropy"] > 0.1

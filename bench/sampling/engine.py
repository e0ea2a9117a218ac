"""Tokens per second of the builtin engine against `transformers.generate`, with and without a LoRA.

One turn: N prompts of one length, a fixed number of sampled tokens each. Either all prompts differ (no prefix
to reuse), or they are groups of eight samples of one prompt, as GRPO asks for them. One length means no
padding for the peer. The engine runs as it is used, in its worker process, asked from here; the peer is one
batched `generate` call, with a LoRA on a PEFT model. Both compute with the same number of threads, in turns;
the ratio is the median of the repetitions' ratios.

`http_rows` is where the rows over HTTP (64 ragged rollouts of six turns) are added by `bench.engine_http`.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from art.engine.protocol import Engine, GenerateRequest, Sampling
from art.wire.engine import BuiltinOptions
from bench.models import NANO, qwen3, save_adapter, save_model
from bench.rows import Row, write_rows
from bench.sampling.batched_generate import generate_seconds
from bench.sampling.workers import running_engine

PROMPT_TOKENS = 48
NEW_TOKENS = 32
CONCURRENT = (1, 8, 64)
REPETITIONS = 9
SIBLINGS = 8
GOAL = 1.3
THREADS = 1
OPTIONS = BuiltinOptions(threads=THREADS).model_dump()
VOCAB = 384


@dataclass(frozen=True, kw_only=True)
class OneTurn:
    """Both sides of the comparison; each `run` gives the seconds for `count` prompts."""

    engine: Engine
    adapter: str | None
    peer: Any

    async def ours(self, prompts: list[list[int]]) -> float:
        sampling = Sampling(max_tokens=NEW_TOKENS)
        begin = time.perf_counter()
        await asyncio.gather(
            *(
                self._complete(
                    GenerateRequest(
                        request_id=str(number), adapter=self.adapter, prompt_ids=prompt, sampling=sampling
                    )
                )
                for number, prompt in enumerate(prompts)
            )
        )
        return time.perf_counter() - begin

    async def _complete(self, request: GenerateRequest) -> None:
        tokens = 0
        async for delta in self.engine.generate(request):
            tokens += len(delta.token_ids)
        if tokens != NEW_TOKENS:
            raise SystemExit(f"our engine sampled {tokens} tokens, not {NEW_TOKENS}")

    async def row(self, name: str, count: int, siblings: int = 1) -> Row:
        """`count` requests, of which each `siblings` share a prompt."""
        pairs = []
        for repetition in range(REPETITIONS + 1):
            prompts = torch.randint(VOCAB, (count // siblings, PROMPT_TOKENS)).repeat_interleave(siblings, 0)
            prompts = prompts.tolist()
            theirs = generate_seconds(self.peer, prompts, NEW_TOKENS)
            pair = (await self.ours(prompts), theirs)
            # The first one warms both up.
            if repetition:
                pairs.append(pair)
        tokens = count * NEW_TOKENS
        return Row(
            name=name,
            ours=statistics.median(tokens / ours for ours, _ in pairs),
            peer=statistics.median(tokens / theirs for _, theirs in pairs),
            unit="tok/s",
            ratio=statistics.median(theirs / ours for ours, theirs in pairs),
            goal=GOAL if count == max(CONCURRENT) else None,
        )


async def one_turn_rows(engine: Engine, base: Path, adapter: Path) -> list[Row]:
    await engine.load_adapter("lora", adapter)
    plain = AutoModelForCausalLM.from_pretrained(base).eval()
    lora = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    rows = []
    for suffix, side in (
        ("", OneTurn(engine=engine, adapter=None, peer=plain)),
        (", LoRA", OneTurn(engine=engine, adapter="lora", peer=lora)),
    ):
        for count in CONCURRENT:
            rows.append(await side.row(f"one turn, {count} concurrent{suffix}", count))
        largest = max(CONCURRENT)
        name = f"one turn, {largest} concurrent in groups of {SIBLINGS}{suffix}"
        rows.append(await side.row(name, largest, SIBLINGS))
    return rows


async def measure_one_turn() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        base = save_model(qwen3(NANO, vocabulary=VOCAB, positions=1024), Path(folder) / "base")
        adapter = save_adapter(base, Path(folder) / "adapter")
        async with running_engine(base, OPTIONS) as engine:
            return await one_turn_rows(engine, base, adapter)


def main() -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(THREADS)
    write_rows("engine", asyncio.run(measure_one_turn()))


if __name__ == "__main__":
    main()

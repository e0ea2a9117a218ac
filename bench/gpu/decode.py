"""Decoding of the builtin engine at 1, 64 and 256 sequences, against `transformers.generate`, with a LoRA.

All prompts differ. The peer is one batched `generate` of a PEFT model. The limit is what reading the weights
once for each token of all sequences, and each sequence's keys and values, takes at the measured copy rate:

    tokens/s = sequences x rate / (bytes of the weights + sequences x context x bytes of a cached token)
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import torch
from peft import PeftModel
from transformers.utils import logging as transformers_logging

from art.engine.builtin.engine import BuiltinEngine
from art.engine.protocol import GenerateRequest, Sampling
from art.training.trainer import Trainer
from art.wire.engine import BuiltinOptions
from art.wire.training import LoraSpec
from bench.gpu.results import COPY, Session
from bench.gpu.shapes import Shape, find_shape, make_causal_lm, make_policy, model_folder
from bench.gpu.trainer import draw_ids
from bench.sampling.batched_generate import generate_seconds

COUNTS = (1, 64, 256)
PROMPT, NEW = 256, 64
WARM = 8
"""Tokens that warm both sides up."""
MODEL = "bench/decode"


def make_adapter(shape: Shape, work: Path, device: str) -> Path:
    """A LoRA whose B matrices are not zero, as the trainer writes it."""
    folder = work / f"{shape.name}-adapter"
    if not folder.exists():
        trainer = Trainer(make_policy(shape, device, twice=False))
        trainer.open(MODEL, LoraSpec())
        randomize(trainer)
        trainer.save(MODEL, folder)
    return folder


def randomize(trainer: Trainer, model: str = MODEL) -> None:
    """Gives B matrices values as after some training."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in trainer.parameters(model).items():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.01)


def make_prompts(shape: Shape, count: int, tokens: int, seed: int) -> list[list[int]]:
    ids = draw_ids(shape, count * tokens, seed)
    return [ids[at : at + tokens] for at in range(0, len(ids), tokens)]


async def decode(engine: BuiltinEngine, prompts: list[list[int]], new: int, adapter: str | None) -> float:
    """Returns the seconds of so many new tokens for each prompt."""

    async def complete(number: int, prompt: list[int]) -> int:
        request = GenerateRequest(
            request_id=str(number), adapter=adapter, prompt_ids=prompt, sampling=Sampling(max_tokens=new)
        )
        return sum([len(delta.token_ids) async for delta in engine.generate(request)])

    begin = time.perf_counter()
    drawn = await asyncio.gather(*(complete(n, prompt) for n, prompt in enumerate(prompts)))
    seconds = time.perf_counter() - begin
    if set(drawn) != {new}:
        raise SystemExit(f"the engine sampled {sorted(set(drawn))} tokens, not {new}")
    return seconds


def decode_limit(session: Session, shape: Shape, count: int, context: float) -> float | None:
    """Returns the tokens a second that the copy rate allows."""
    rate = session.ceiling(COPY)
    if rate is None:
        return None
    return count * rate * 1e12 / (shape.weight_bytes + count * context * shape.cached_bytes)


async def measure(session: Session, shape: Shape, prompt: int, new: int, counts: tuple[int, ...]) -> None:
    adapter = make_adapter(shape, session.work, session.device)
    folder = model_folder(shape, session.work, session.device)
    options = BuiltinOptions(device=session.device, dtype="bfloat16")
    engine = await BuiltinEngine.start(str(folder), options)
    try:
        await engine.load_adapter("lora", adapter)
        peer = PeftModel.from_pretrained(make_causal_lm(shape, session.device), adapter).eval()
        for count in counts:
            for tokens in (WARM, new):
                prompts = make_prompts(shape, count, prompt, 10 * count + tokens)
                ours = await decode(engine, prompts, tokens, "lora")
                theirs = generate_seconds(peer, prompts, tokens, session.device)
            drawn = count * new
            session.record(
                f"{shape.name}: {count} sequences, prompts of {prompt}, {new} new tokens each",
                drawn / ours,
                "tokens/s",
                peer=drawn / theirs,
                peer_name="transformers.generate + PEFT",
                limit=decode_limit(session, shape, count, prompt + new / 2),
                limit_how="weights and cache read once a step at the measured copy rate; prompts not counted",
            )
    finally:
        await engine.close()


def main(arguments: list[str]) -> None:
    session, _ = Session.open("decode", arguments)
    transformers_logging.set_verbosity_error()
    shape = find_shape("qwen3-0.6b", dry=session.dry)
    prompt, new, counts = (16, 8, (1, 4)) if session.dry else (PROMPT, NEW, COUNTS)
    asyncio.run(measure(session, shape, prompt, new, counts))


if __name__ == "__main__":
    main(sys.argv[1:])

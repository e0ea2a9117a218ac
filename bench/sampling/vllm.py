"""Tokens per second of the builtin engine against vLLM on a CPU, each as the server runs it.

One turn: N prompts of one length, a fixed number of sampled tokens each, all of one LoRA. Each engine runs in
its process, asked from here in turns; the ratio is the median of the
repetitions' ratios. vLLM's environment is made by the bench where there is none.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from art.engine.nano_models import resolve
from art.engine.protocol import Engine, GenerateRequest, Sampling, ServerOrder
from art_extensions.vllm.options import VllmOptions
from art_extensions.vllm.runtime import install_vllm
from art_extensions.vllm.start import start_vllm
from bench.models import save_adapter
from bench.rows import Row, write_rows
from bench.sampling.engine import NEW_TOKENS, PROMPT_TOKENS
from bench.sampling.workers import running_engine

CONCURRENT = (8, 64)
ORDINARY_IDS = 300
"""Of the tokenizer, below its special ones."""
REPETITIONS = 5
GOAL = 5.0
ENVIRONMENT = Path(__file__).parents[1] / "envs" / "vllm"
SHARED = Path(__file__).parents[2] / ".venv-vllm"
"""That of the tests, where it is there already."""


async def seconds(engine: Engine, prompts: list[list[int]]) -> float:
    async def one(prompt: list[int]) -> None:
        sampling = Sampling(max_tokens=NEW_TOKENS)
        request = GenerateRequest(request_id="", adapter="lora", prompt_ids=prompt, sampling=sampling)
        tokens = sum([len(delta.token_ids) async for delta in engine.generate(request)])
        if tokens != NEW_TOKENS:
            raise SystemExit(f"{tokens} tokens were sampled, not {NEW_TOKENS}")

    begin = time.perf_counter()
    await asyncio.gather(*map(one, prompts))
    return time.perf_counter() - begin


async def row(ours: Engine, theirs: Engine, count: int) -> Row:
    pairs = []
    for repetition in range(REPETITIONS + 1):
        prompts = torch.randint(ORDINARY_IDS, (count, PROMPT_TOKENS)).tolist()
        pair = (await seconds(ours, prompts), await seconds(theirs, prompts))
        if repetition:  # the first one warms both up
            pairs.append(pair)
    tokens = count * NEW_TOKENS
    return Row(
        name=f"vLLM, one turn, {count} concurrent, LoRA",
        ours=statistics.median(tokens / mine for mine, _ in pairs),
        peer=statistics.median(tokens / other for _, other in pairs),
        unit="tok/s",
        ratio=statistics.median(other / mine for mine, other in pairs),
        goal=GOAL if count == max(CONCURRENT) else None,
    )


async def measure(environment: Path) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = resolve("art/nano-games")  # vLLM does not start without a tokenizer
        adapter = save_adapter(base, folder / "adapter")
        options = VllmOptions(environment=environment, threads=1)
        order = ServerOrder(name="vllm", base_model=str(base), options=options, log_path=folder / "vllm.log")
        async with running_engine(base, {"threads": 1}, log=folder / "builtin.log") as ours:
            server = await start_vllm(order)
            try:
                for engine in (ours, server.engine):
                    await engine.load_adapter("lora", adapter)
                return [await row(ours, server.engine, count) for count in CONCURRENT]
            finally:
                await server.stop()


def main() -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    environment = SHARED
    if not SHARED.exists():
        environment = ENVIRONMENT
        install_vllm(ENVIRONMENT, "cpu", print)
    write_rows("vllm", asyncio.run(measure(environment)))


if __name__ == "__main__":
    main()

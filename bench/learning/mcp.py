"""MCP-RL without labels, offline: `python -m bench.learning.mcp [--seeds 0] [--base-model X] [--steps 100]`.

`mcp-weather-*`: `art mcp train` as it is typed, once for each seed, in a process of its own: `art/nano-mcp`
learns the tools of the weather server, which is reached over streamable HTTP. Generator and judge are one
endpoint, given by its address; the judge knows the truth. Of the run's own held-out scenarios, which training
never sees, one is done when the right answer was found with the tools: counted here, from the attempts that
the command kept, since the command does not know the truth.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import art
import art_extensions.scenarios.mcp
from art.process import environment
from art.process.resources import find_free_tcp_port
from art_extensions.scenarios.mcp_rl.mcp_run import McpRunFolder
from art_extensions.testing import LlmServer, ScriptedGenerator, TruthfulJudge, either
from art_extensions.testing.mcp_servers.weather.answers import written_tasks
from art_extensions.testing.mcp_servers.weather.tasks import (
    DEFAULTS,
    DONE,
    SYSTEM_PROMPT,
    TURN_LIMIT,
    quality,
)
from bench.learning.held_out import Skill, policy, skill_rows
from bench.rows import Row, write_rows

SEEDS = (0, 1, 2)
TASKS_SEED = 100
"""The generator has other tasks for each seed; those of seed 0 served to choose the settings."""
TRAIN, HELD_OUT = 192, 64
ATTEMPTS = 8
"""At each held-out task, sampled: 512 in all."""
AT_MOST_BEFORE, AT_LEAST_AFTER, SECONDS = 0.35, 0.85, 900.0
START_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a run came to: at held-out tasks, one of which is a success when it got done; and seconds."""

    before: Skill
    after: Skill
    seconds: float
    """Of the whole command: both evaluations and the judge's comparison included."""
    verdict: str
    """Of the report: what the judge, beside each other, says of before and after."""
    questions: int
    """That judge and generator were asked."""


@contextlib.contextmanager
def weather_server() -> Iterator[str]:
    """Its address, while it runs in a process of its own."""
    port = find_free_tcp_port()
    command = [
        sys.executable,
        "-m",
        "art_extensions.testing.mcp_servers.weather",
        "--http",
        "--port",
        str(port),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()


def command(server: str, oracle: str, *, seed: int, base_model: str, steps: int) -> list[str]:
    """What is typed."""
    options = {
        "base-model": base_model,
        "system-prompt": SYSTEM_PROMPT,
        "judge": "truth",
        "judge-base-url": oracle,
        "generator": "writer",
        "generator-base-url": oracle,
        "num-train": TRAIN,
        "num-test": HELD_OUT,
        "test-attempts": ATTEMPTS,
        "difficulty-rollouts": 0,
        "steps": steps,
        "groups-per-step": DEFAULTS.groups,
        "group-size": DEFAULTS.group_size,
        "warmup-steps": DEFAULTS.warmup_steps,
        "final-share": DEFAULTS.final_share,
        "max-tokens": DEFAULTS.max_tokens,
        "max-turns": TURN_LIMIT,
        "concurrency": 128,
        "seed": seed,
    }
    typed = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [str(Path(sys.executable).with_name("art")), "mcp", "train", *typed, "--", server]


def learn(seed: int, folder: Path, base_model: str, steps: int) -> Learned:
    """Type the command, and read what it kept."""
    generator = ScriptedGenerator(scenarios=written_tasks(seed=TASKS_SEED + seed))
    with (
        LlmServer(either(judge=TruthfulJudge(quality), generator=generator)) as oracle,
        weather_server() as server,
    ):
        keys = dict.fromkeys((environment.JUDGE_API_KEY, environment.GENERATOR_API_KEY), oracle.key)
        typed = command(server, oracle.base_url, seed=seed, base_model=base_model, steps=steps)
        begin = time.perf_counter()
        subprocess.run(typed, cwd=folder, env={**os.environ, **keys}, check=True, stdout=sys.stderr)
        seconds, questions = time.perf_counter() - begin, len(oracle.requests)
        report = json.loads((folder / ".art/mcp/mcp/mcp-agent/report.json").read_text())
        before, after = asyncio.run(skills(folder, server, base_model, report["step"]))
    return Learned(
        before=before,
        after=after,
        seconds=seconds,
        verdict=report["verdict"],
        questions=questions,
    )


async def skill_at(kept: McpRunFolder, server: str, model: art.TrainableModel, step: int) -> Skill:
    """What was kept of the held-out tasks, and a greedy rollout of each. One that failed is not done."""
    made = kept.scenarios()
    assert made is not None
    sampled = [
        [float(quality(one.messages()) >= DONE) for one in row] or [0.0]
        for row in kept.evaluation(step) or ()
    ]
    limit = asyncio.Semaphore(16)

    async def greedy(scenario: Any) -> float:
        async with limit:
            done = await art_extensions.scenarios.mcp.rollout(
                policy(model, step),
                scenario,
                server,
                system_prompt=SYSTEM_PROMPT,
                max_turns=TURN_LIMIT,
                max_tokens=DEFAULTS.max_tokens,
                temperature=0.0,
            )
        return float(quality(done.messages()) >= DONE)

    return Skill.of(sampled, await asyncio.gather(*map(greedy, made.test)))


async def skills(folder: Path, server: str, base_model: str, last: int) -> tuple[Skill, Skill]:
    """Before and after, from the folder that the command left. Starts its server again."""
    model = art.TrainableModel(name="mcp-agent", project="mcp", base_model=base_model)
    kept = McpRunFolder(folder / ".art" / "mcp" / "mcp" / "mcp-agent")
    async with art.LocalBackend(path=str(folder / ".art")) as backend:
        await model.register(backend)
        before, after = [await skill_at(kept, server, model, step) for step in (0, last)]
    return before, after


def rows_of(seed: int, run: Learned) -> list[Row]:
    name = f"mcp-weather-{seed}"
    return [
        Row(
            name=f"{name}: done before",
            ours=run.before.sampled,
            unit="share",
            goal=AT_MOST_BEFORE,
            at_most=True,
        ),
        Row(name=f"{name}: done after", ours=run.after.sampled, unit="share", goal=AT_LEAST_AFTER),
        *skill_rows(name, run.before, run.after),
        Row(
            name=f"{name}: the judge prefers after", ours=float(run.verdict == "better"), unit="yes", goal=1.0
        ),
        Row(name=f"{name}: wall time", ours=run.seconds, unit="s", goal=SECONDS, at_most=True),
        Row(name=f"{name}: questions to judge and generator", ours=run.questions, unit="requests"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.mcp", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--base-model", default=DEFAULTS.base_model)
    parser.add_argument("--steps", type=int, default=DEFAULTS.steps)
    options = parser.parse_args()
    rows: list[Row] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
            rows += rows_of(seed, learn(seed, Path(folder), options.base_model, options.steps))
    write_rows("mcp", rows)


if __name__ == "__main__":
    main()

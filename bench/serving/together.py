"""Four runs on one server and one base model, together, against the same four one after the other.

Each run is a program of its own, as four users would start them: it gathers attempts and trains its own
model. Programs are started and models registered before the clock starts. All seeds are fixed, so both
arrangements play from the same positions with the same draws; what is left between their rewards are the
last bits of sums, which depend on who shares a batch.

    slow tool       tic-tac-toe whose games first wait for a tool: a seeded lognormal time (median 0.3 s; of a
                    step's games the slowest takes some 4 s), as a sandbox or a web page would make it
    mail, games     no waiting at all. On two cores four clients, the server, the engine and the trainer then
                    share what one run alone leaves idle. The CPU seconds (all processes of ours while
                    the clock ran) say what sharing saved, and how idle the cores were

    python -m bench.serving.together            both arrangements
    python -m bench.serving.together RUN        one run, told on standard input; says its rewards
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import art
from art.client.backends.local_server import ServerProcess
from art.environments import tasks
from bench.rows import Row, write_rows

RUNS, STEPS = 4, 3
SHARE = 0.6
EVALUATIONS = 128
MEDIAN_S, SPREAD = 0.3, 1.0
LIMIT_SECONDS = 300.0
SERVER = {"engine": {"options": {"threads": 1}}, "trainer": {"options": {"threads": 1}}}


async def run(job: dict[str, Any]) -> None:
    """Register, say so, wait for the word, train, say what came of it."""
    task = tasks.find(job["task"])
    model = art.TrainableModel(name=job["name"], project="bench", base_model=task.DEFAULTS.base_model)
    async with art.RemoteBackend(job["url"], job["key"]) as backend:
        await model.register(backend)
        say({"ready": True})
        await asyncio.to_thread(sys.stdin.readline)
        for step in range(job["steps"]):
            await train_one_step(model, job, step)
        say({"done": True})
        scores = await art.gather_trajectories(
            task.rollout(model, task.scenario(10**6, index), seed=index) for index in range(EVALUATIONS)
        )
        say({"reward": statistics.mean(float(one.reward) for one in scores)})


async def train_one_step(model: art.TrainableModel, job: dict[str, Any], step: int) -> None:
    task = tasks.find(job["task"])
    first, attempts = step * task.DEFAULTS.groups, range(task.DEFAULTS.group_size)

    async def attempt(index: int, seed: int) -> art.Trajectory:
        if job["tool"]:
            draw = random.Random(f"tool/{job['seed']}/{index}/{seed}")
            await asyncio.sleep(draw.lognormvariate(0.0, SPREAD) * MEDIAN_S)
        return await task.rollout(model, task.scenario(job["seed"], index), seed=seed)

    groups = await art.gather_trajectory_groups(
        art.TrajectoryGroup(attempt(index, seed) for seed in attempts)
        for index in range(first, first + task.DEFAULTS.groups)
    )
    await model.train(groups, config=art.TrainConfig(learning_rate=task.DEFAULTS.rate_at(step, steps=STEPS)))


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Program:
    """One run, in a process of its own."""

    def __init__(self, server: ServerProcess, number: int, *, task: str, tool: bool) -> None:
        job = {
            "task": task,
            "tool": tool,
            "name": f"player-{number}",
            "seed": number,
            "steps": STEPS,
            "url": server.url,
            "key": server.key,
        }
        command = [sys.executable, "-m", "bench.serving.together", "RUN"]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell(json.dumps(job))
        self.hear("ready")

    def tell(self, line: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def hear(self, word: str) -> float:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"a run ended with {self.child.wait()}")
        return float(json.loads(line)[word])


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the four cost: seconds on the clock and of CPU, and the reward that each has in the end."""

    wall: float
    cpu: float
    rewards: list[float]


def cpu_seconds(server: ServerProcess, programs: list[Program]) -> float:
    """Of the server, its workers and the programs, until now."""
    assert server.pid is not None
    process = psutil.Process(server.pid)
    ours = [process, *process.children(recursive=True), *(psutil.Process(one.child.pid) for one in programs)]
    return sum(float(times.user + times.system) for times in (one.cpu_times() for one in ours))


def measure(*, together: bool, task: str, tool: bool) -> Measured:
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        server = ServerProcess(Path(name) / "data", SERVER)
        server.ensure_running()
        programs: list[Program] = []
        try:
            programs += [Program(server, number, task=task, tool=tool) for number in range(RUNS)]
            begin, spent = time.perf_counter(), cpu_seconds(server, programs)
            for program in programs:
                program.tell("go")
                if not together:
                    program.hear("done")
            for program in programs if together else ():
                program.hear("done")
            wall, cpu = time.perf_counter() - begin, cpu_seconds(server, programs) - spent
            return Measured(wall=wall, cpu=cpu, rewards=[program.hear("reward") for program in programs])
        finally:
            for program in programs:
                program.child.kill()
                program.child.communicate(timeout=LIMIT_SECONDS)
            server.stop()


def rows(task: str, *, tool: bool) -> list[Row]:
    ours, peer = (measure(together=together, task=task, tool=tool) for together in (True, False))
    name = f"{RUNS} runs of {task} together" + (" with a slow tool" if tool else "")
    reward, expected = statistics.mean(ours.rewards), statistics.mean(peer.rewards)
    return [
        Row(name=f"{name}, together against one after the other", ours=ours.wall, peer=peer.wall,
            unit="s", ratio=peer.wall / ours.wall, goal=1 / SHARE),
        Row(name=f"{name}: CPU, against one after the other", ours=ours.cpu, peer=peer.cpu,
            unit="s", ratio=peer.cpu / ours.cpu),
        Row(name=f"{name}: mean reward in the end", ours=reward, peer=expected, unit="reward",
            ratio=reward / expected, goal=0.97),
    ]  # fmt: skip


def main() -> None:
    write_rows(
        "together",
        [*rows("tic-tac-toe", tool=True), *rows("mail", tool=False), *rows("tic-tac-toe", tool=False)],
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["RUN"]:
        asyncio.run(run(json.loads(sys.stdin.readline())))
    else:
        main()

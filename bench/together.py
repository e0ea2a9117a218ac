"""Four runs on one server and one base model, together, against the same four one after the other.

Each run is a program of its own, as four users would start them: it gathers tic-tac-toe games and trains its
own model on `art/nano-games`. Programs are started and models registered before the clock starts. All seeds
are fixed, so both arrangements play from the same positions with the same draws; what is left between their
rewards are the last bits of sums, which depend on who shares a batch.

    python -m bench.together            both arrangements
    python -m bench.together RUN        one run, told on standard input; says its rewards
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import art
from art import tasks
from art.local.supervisor import ServerProcess
from bench.rows import Row, write_rows

TASK = "tic-tac-toe"
RUNS, STEPS, REPETITIONS = 4, 8, 2
SHARE = 0.6
EVALUATIONS = 256
LIMIT_SECONDS = 300.0
SERVER = {"engine": {"options": {"threads": 1}}, "trainer": {"options": {"threads": 1}}}


async def run(job: dict[str, Any]) -> None:
    """Register, say so, wait for the word, train, say what came of it."""
    task = tasks.find(TASK)
    model = art.TrainableModel(name=job["name"], project="bench", base_model=task.DEFAULTS.base_model)
    async with art.RemoteBackend(job["url"], job["key"]) as backend:
        await model.register(backend)
        say({"ready": True})
        await asyncio.to_thread(sys.stdin.readline)
        for step in range(job["steps"]):
            await train_one_step(model, job["seed"], step)
        say({"done": True})
        scores = await art.gather_trajectories(
            task.rollout(model, task.scenario(10**6, index), seed=index) for index in range(EVALUATIONS)
        )
        say({"reward": statistics.mean(float(one.reward) for one in scores)})


async def train_one_step(model: art.TrainableModel, seed: int, step: int) -> None:
    task = tasks.find(TASK)
    first, attempts = step * task.DEFAULTS.groups, range(task.DEFAULTS.group_size)
    scenarios = [task.scenario(seed, first + index) for index in range(task.DEFAULTS.groups)]
    groups = await art.gather_trajectory_groups(
        art.TrajectoryGroup(task.rollout(model, scenario, seed=attempt) for attempt in attempts)
        for scenario in scenarios
    )
    await model.train(groups, config=art.TrainConfig(learning_rate=task.DEFAULTS.rate_at(step, steps=STEPS)))


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Program:
    """One run, in a process of its own."""

    def __init__(self, server: ServerProcess, number: int) -> None:
        job = {
            "name": f"player-{number}",
            "seed": number,
            "steps": STEPS,
            "url": server.url,
            "key": server.key,
        }
        command = [sys.executable, "-m", "bench.together", "RUN"]
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


def measure(*, together: bool) -> tuple[float, list[float]]:
    """Wall seconds of all four, and the reward that each has in the end."""
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        server = ServerProcess(Path(name) / "data", SERVER)
        server.ensure_running()
        programs: list[Program] = []
        try:
            programs += [Program(server, number) for number in range(RUNS)]
            begin = time.perf_counter()
            for program in programs:
                program.tell("go")
                if not together:
                    program.hear("done")
            for program in programs if together else ():
                program.hear("done")
            seconds = time.perf_counter() - begin
            return seconds, [program.hear("reward") for program in programs]
        finally:
            for program in programs:
                program.child.kill()
                program.child.communicate(timeout=LIMIT_SECONDS)
            server.stop()


def main() -> None:
    pairs = [(measure(together=True), measure(together=False)) for _ in range(REPETITIONS)]
    ours = statistics.median(together[0] for together, _ in pairs)
    peer = statistics.median(after[0] for _, after in pairs)
    cost = statistics.median(together[0] / after[0] for together, after in pairs)
    rewards = [[statistics.mean(side[1]) for side in pair] for pair in pairs]
    write_rows(
        "together",
        [
            Row(name=f"{RUNS} runs together, against {SHARE:.0%} of one after the other", ours=ours,
                peer=SHARE * peer, unit="s", ratio=SHARE / cost, goal=1.0),
            Row(name=f"{RUNS} runs together, share of one after the other", ours=cost, peer=1.0, unit="",
                ratio=1 / cost),
            Row(name="mean reward in the end", ours=statistics.mean(one for one, _ in rewards),
                peer=statistics.mean(other for _, other in rewards), unit="reward",
                ratio=statistics.mean(one / other for one, other in rewards), goal=0.97),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:] == ["RUN"]:
        asyncio.run(run(json.loads(sys.stdin.readline())))
    else:
        main()

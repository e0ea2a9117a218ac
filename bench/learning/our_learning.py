"""Our side of `bench.learning.end_to_end`: a program as a user writes it, until an evaluation is good enough.

    python -m bench.learning.our_learning JOB.json

Says the same lines as TRL's side (`bench/trl/learn_worker.py`), which has the meaning of each.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import asyncio  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import art  # noqa: E402
from art.environments import tasks  # noqa: E402

EVALUATION_SEED = 1_000_003


async def train_one_step(model: art.TrainableModel, job: dict[str, Any], step: int) -> None:
    task = tasks.find(job["task"])
    first, attempts = step * job["groups"], range(job["group_size"])
    groups = await art.gather_trajectory_groups(
        art.TrajectoryGroup(task.rollout(model, scenario) for _ in attempts)
        for scenario in [task.scenario(job["seed"], first + index) for index in range(job["groups"])]
    )
    await model.train(groups, config=art.TrainConfig(learning_rate=job["rates"][step], algorithm="cispo"))


async def evaluate(model: art.TrainableModel, job: dict[str, Any]) -> float:
    task = tasks.find(job["task"])
    trajectories = await art.gather_trajectories(
        task.rollout(model, task.scenario(EVALUATION_SEED, index)) for index in range(job["evaluations"])
    )
    return sum(float(one.reward) for one in trajectories) / len(trajectories)


async def learn(job: dict[str, Any]) -> None:
    model = art.TrainableModel(name="learner", project="bench", base_model=job["model"])
    async with art.LocalBackend(path=Path(job["folder"])) as backend:
        await model.register(backend)
        startup = time.perf_counter() - BEGIN
        seconds = 0.0
        for step in range(len(job["rates"])):
            begin = time.perf_counter()
            await train_one_step(model, job, step)
            seconds += time.perf_counter() - begin
            if (step + 1) % job["every"]:
                continue
            reward = await evaluate(model, job)
            say({"step": step + 1, "seconds": seconds, "startup": startup, "reward": reward})
            if reward >= job["threshold"]:
                return


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(learn(json.loads(Path(sys.argv[1]).read_text())))

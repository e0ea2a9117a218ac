"""A program as users of `art launch` write it: the backend is whatever the environment names."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import art
from art.environments import tasks


async def train() -> None:
    backend = art.ServerlessBackend()
    model: Any = art.TrainableModel(name="agent", project="games", base_model="art/nano-games")
    await model.register(backend)
    task = tasks.find("yes-no-maybe")
    groups = await art.gather_trajectory_groups(
        [
            art.TrajectoryGroup(task.rollout(model, task.scenario(0, index)) for _ in range(4))
            for index in range(2)
        ],
        pbar_desc=None,
    )
    result = await backend.train(model, groups, learning_rate=1e-3)
    print(f"step {result.step}", flush=True)
    await backend.close()


if sys.argv[1] == "train":
    asyncio.run(train())
    sys.exit(7)
print(f"ready {os.getpid()}", flush=True)
time.sleep(3600)

"""A project that the quick start's task was trained in: a data folder whose server has ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import art
from art.environments import tasks

STEPS = 2
KEY = "games/player"


def train(data_dir: Path) -> None:
    """Two steps whose learning rate is so large that greedy answers change."""

    async def run() -> None:
        task = tasks.find("yes-no-maybe")
        model = art.TrainableModel(name="player", project="games", base_model="art/nano-games")
        async with art.LocalBackend(path=data_dir) as backend:
            await model.register(backend)
            for step in range(STEPS):
                groups = await art.gather_trajectory_groups(
                    [
                        art.TrajectoryGroup(
                            task.rollout(model, task.scenario(0, step * 4 + index)) for _ in range(8)
                        )
                        for index in range(4)
                    ],
                    pbar_desc=None,
                )
                await model.train(groups, art.TrainConfig(learning_rate=2e-2))
            rollouts = await art.gather_trajectories(
                [task.rollout(model, task.scenario(1, index)) for index in range(4)], pbar_desc=None
            )
            await model.log(rollouts, split="val", step=1)

    asyncio.run(run())


def art_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`art`, as it is typed."""
    return subprocess.run(
        [str(Path(sys.executable).parent / "art"), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "COLUMNS": "160", **environment},
    )

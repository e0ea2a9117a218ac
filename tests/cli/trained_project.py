"""A project that a task of the quick start was trained in: a data folder whose server has ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import art
from art.environments import tasks

STEPS = 2
KEY = "games/player"
QUESTIONS = ["respond with yes, no or maybe", "answer with maybe, no or yes", "A B", "just say something"]
REPLY_TOKENS = 12


def train(data_dir: Path) -> list[list[int]]:
    """Makes two steps whose learning rate is so large that greedy answers change. Returns the ids that the
    server then samples greedily for `QUESTIONS`.
    """

    async def reply_ids(model: art.TrainableModel[Any, Any], question: str) -> list[int]:
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(),
            messages=[{"role": "user", "content": question}],
            max_tokens=REPLY_TOKENS,
            temperature=0,
            extra_body={"return_token_ids": True},
        )
        ids: list[int] = completion.choices[0].model_extra["token_ids"]  # type: ignore[index]
        return ids

    async def run() -> list[list[int]]:
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
            return [await reply_ids(model, question) for question in QUESTIONS]

    return asyncio.run(run())


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

"""Stored rollouts train what fresh ones train: two copies of a server's data, one adapter to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import art
from art.tracking.trajectory_log import read_trajectory_groups


async def answer(model: art.TrainableModel, reward: float | art.Unscored | Exception) -> art.Trajectory:
    if isinstance(reward, Exception):
        raise reward
    said = art.Trajectory(messages_and_choices=[{"role": "user", "content": "yes or no?"}], reward=reward)
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=said.messages(), max_tokens=6
    )
    said.messages_and_choices.append(completion.choices[0])
    return said


def learner(path: Path) -> art.TrainableModel:
    return art.TrainableModel(name="a", project="p", base_model="art/nano", base_path=str(path))


async def trained(path: Path, groups: list[art.TrajectoryGroup]) -> tuple[Any, dict[str, bytes]]:
    """The sheet of a step on these groups, and the files of its adapter."""
    model = learner(path)
    async with art.LocalBackend(path=str(path)) as backend:
        await model.register(backend)
        result = await backend.train(model, groups, learning_rate=1e-3, algorithm="grpo", job_id="one")
    assert result.step == 1 and result.checkpoint_path is not None
    return result.sheet, weights_in(Path(result.checkpoint_path))


def weights_in(checkpoint: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in checkpoint.glob("adapter_model*")}


@pytest.mark.slow
async def test_a_step_on_stored_rollouts_makes_the_adapter_of_the_first_one(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    model = learner(first)
    lost: list[Any] = [1.0, art.Unscored("the judge is ill"), 0.0, OSError("no world")]
    async with art.LocalBackend(path=str(first)) as backend:
        await model.register(backend)
        groups = await art.gather_trajectory_groups(
            [
                art.TrajectoryGroup((answer(model, reward) for reward in lost), weight=0.3),
                art.TrajectoryGroup(answer(model, place / 3) for place in range(4)),
            ],
            max_exceptions=1,
            pbar_desc=None,
        )
    await model.log(groups, split="train", step=0)
    shutil.copytree(first, again)
    file = again / "p/models/a/trajectories/train/0000.parquet"
    sheet, weights = await trained(first, groups)
    assert weights and sheet.fates["trained"].rollouts >= 2
    assert sheet.fates["unscored"].rollouts == sheet.fates["failed"].rollouts == 1
    assert await trained(again, read_trajectory_groups(file)) == (sheet, weights)

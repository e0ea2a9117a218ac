"""What a task shows of a rollout goes with the trajectory."""

from __future__ import annotations

from pathlib import Path

import pytest

import art
from art.environments import tasks
from art.types import SHOW


@pytest.mark.slow
async def test_a_rollout_has_what_its_task_shows(tmp_path: Path) -> None:
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        for name in tasks.NAMES:
            task = tasks.find(name)
            model = art.TrainableModel(name=name, project="p", base_model=task.DEFAULTS.base_model)
            await model.register(backend)
            trajectory = await task.rollout(model, task.scenario(0, 0), seed=1)
            shown = trajectory.metadata[SHOW]
            assert isinstance(shown, str) and shown.strip()
            assert shown.splitlines()[-1].startswith("result: ")

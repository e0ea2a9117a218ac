"""The loop of every run: a step is trained and logged once, wherever the program ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from interrupted import FileBackend, Forgetful

import art
from art.runs.folder import StepUnderWay
from art.runs.loop import ScoredGroups, TrainingLoop
from art.runs.quickstart import QuickstartFolder, QuickstartStep
from art.tracking.step_log import StepLog


class Killed(BaseException):
    pass


async def roll_out(step: int) -> ScoredGroups[QuickstartStep]:
    row = QuickstartStep(
        step=step + 1, reward=0.5, score=0.25, trained=None, seconds_rollouts=1.0, seconds_training=None
    )
    group = art.TrajectoryGroup([art.Trajectory(reward=float(step)), art.Trajectory(reward=1.0)])
    return ScoredGroups(groups=[group], row=row, learning_rate=1e-3)


async def registered(path: Path, backend: Any) -> tuple[art.TrainableModel, QuickstartFolder]:
    model = art.TrainableModel(name="n", project="p", base_model="b", base_path=str(path))
    await model.register(backend)
    return model, QuickstartFolder(path)


@pytest.mark.parametrize("kind", [FileBackend, pytest.param(Forgetful, marks=pytest.mark.extension)])
@pytest.mark.parametrize("moment", ["committed", "moved", "logged"])
async def test_a_quick_start_that_is_killed_logs_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Forgetful], moment: str
) -> None:
    backend = kind(tmp_path / "jobs.json", die_after_commit=False)
    model, folder = await registered(tmp_path, backend)

    async def killed(*_: Any) -> None:
        raise Killed

    name = {"committed": "write", "moved": "_row", "logged": "_delete_job"}[moment]
    with monkeypatch.context() as here, pytest.raises(Killed):
        here.setattr(StepLog, name, killed)
        await TrainingLoop(model, folder).run(3, roll_out, lambda row: None)
    assert len(backend.jobs()) == 1 and not folder.steps() and folder.step_under_way()

    told: list[QuickstartStep] = []
    loop = TrainingLoop(model, folder)
    row = await loop.recover()
    assert row is not None and (row.step, row.score, row.recovered) == (1, 0.25, True)
    assert row.seconds_training is None
    assert await loop.recover() is None and not folder.step_under_way()
    await loop.run(3, roll_out, told.append)
    assert [row.step for row in told] == [2, 3] and [row.step for row in folder.steps()] == [1, 2, 3]
    assert len(backend.jobs()) == 3, "nothing was trained twice"
    home = tmp_path / "p/models/n"
    history = [json.loads(line) for line in (home / "history.jsonl").read_text().splitlines()]
    assert [row["step"] for row in history if "train/reward" in row] == [1, 2, 3]
    assert sorted(file.stem for file in (home / "trajectories/train").glob("*.parquet")) == [
        "0001",
        "0002",
        "0003",
    ]
    assert not list(home.glob("under_way/*"))


def test_the_step_under_way_of_an_earlier_release_is_read() -> None:
    begun = StepUnderWay(job_id="a", step=4, known={"row": {"step": 5}})
    assert StepUnderWay.from_dict(begun.to_dict()) == begun
    assert StepUnderWay.from_dict({"job_id": "a", "row": {"step": 5}}) == begun

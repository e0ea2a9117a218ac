"""A step's log after a kill at each of its moments: complete, and nothing in it twice."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from fast_backend import FastBackend, pair

import art
from art.tracking.trajectory_log import log_groups, read_trajectory_groups
from art_extensions.pipeline.batch import CollectedGroups
from art_extensions.pipeline.pipeline_state import STATE_KEY, PipelineState, RolloutPace
from art_extensions.pipeline.rollout_workers import FinishedGroup, NumberedScenario
from art_extensions.pipeline.settings import pipeline_settings
from art_extensions.pipeline.training_steps import STALE_GROUPS, PipelineStepLog, TrainingSteps

METRICS = {STALE_GROUPS: 3.0, "loss/train": 0.5}
MOMENTS = 8
"""Writes of a step's log: two moves, two rows, the checkpoint's row, the end; and both sides of them."""


class Killed(BaseException):
    pass


class CutLog(PipelineStepLog):
    """Its program is killed before its write number `left`."""

    def __init__(self, model: Any, left: int) -> None:
        super().__init__(model)
        self.left = left

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def _move(self, job_id: str, split: str, step: int) -> None:
        self.count()
        super()._move(job_id, split, step)

    async def _row(self, *row: Any) -> None:
        self.count()
        await super()._row(*row)

    async def _after_rows(self, step: int, logged: Collection[str] = ()) -> None:
        self.count()
        await super()._after_rows(step, logged)

    async def _delete_job(self, job_id: str) -> None:
        self.count()
        await super()._delete_job(job_id)


def groups() -> dict[str, list[art.TrajectoryGroup]]:
    return {"train": [pair(), pair((0.0, 0.5))], "discarded": [pair((1.0, 1.0))]}


def logged(model: Any) -> tuple[list[dict[str, Any]], dict[str, list[art.TrajectoryGroup]]]:
    folder = Path(model._get_output_dir())
    rows = [json.loads(line) for line in (folder / "history.jsonl").open()]
    passing = ("time/", "recorded_at", "checkpoint/created")
    rows = [{name: row[name] for name in sorted(row) if not name.startswith(passing)} for row in rows]
    files = sorted(folder.glob("trajectories/*/*.parquet"))
    found = {str(file.relative_to(folder)): read_trajectory_groups(file) for file in files}
    assert not list(folder.glob("under_way/*"))
    return rows, found


def content(groups: list[art.TrajectoryGroup]) -> list[list[Any]]:
    return [[one.reward for one in group] for group in groups]


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(MOMENTS))
async def test_whenever_it_is_cut_off_the_next_run_logs_the_rest(model: Any, moment: int) -> None:
    cut = CutLog(model, moment)
    await cut.keep("job", 4, groups())
    try:
        await cut.write("job", 4, METRICS, groups())
    except Killed:
        assert moment < 6
    else:
        assert moment >= 6
    await PipelineStepLog(model).recover("job", 4, METRICS)
    rows, files = logged(model)
    assert {name: content(found) for name, found in files.items()} == {
        "trajectories/train/0004.parquet": [[0.0, 1.0], [0.0, 0.5]],
        "trajectories/discarded/0004.parquet": [[1.0, 1.0]],
    }
    assert [(row["step"], row.get("train/reward"), row.get("loss/train")) for row in rows][:1] == [
        (4, 0.375, 0.5)
    ]
    assert [row["discarded/reward"] for row in rows if "discarded/reward" in row] == [1.0]
    assert [row["checkpoint/saved"] for row in rows if "checkpoint/saved" in row] == [1.0] and len(rows) == 3
    await PipelineStepLog(model).recover("job", 4, METRICS)
    assert len(logged(model)[0]) == 3, "a second run that was killed in its beginning does no harm"


async def test_of_a_job_without_a_step_only_what_was_discarded_is_logged(model: Any) -> None:
    await PipelineStepLog(model).keep("job", 4, groups())
    await PipelineStepLog(model).recover("job", 4, None)
    rows, files = logged(model)
    assert list(files) == ["trajectories/discarded/0004.parquet"]
    assert [sorted(name for name in row if "reward" in name) for row in rows] == [
        ["discarded/reward", "discarded/reward_max", "discarded/reward_std_dev"]
    ]


async def test_groups_that_the_program_logged_itself_stay(model: Any) -> None:
    mine = Path(model._get_output_dir()) / "trajectories" / "train"
    log_groups(mine, 4, [pair((0.25, 0.75))])
    log = PipelineStepLog(model)
    await log.keep("job", 4, groups())
    await log.write("job", 4, METRICS, groups())
    found = read_trajectory_groups(mine / "0004.parquet")
    assert content(found) == [[0.25, 0.75], [0.0, 1.0], [0.0, 0.5]]


async def test_what_was_kept_for_no_job_is_forgotten(model: Any) -> None:
    log = PipelineStepLog(model)
    await log.keep("never asked for", 4, groups())
    await log.forget()
    assert not (Path(model._get_output_dir()) / "under_way").exists()


async def test_the_mean_of_all_rollouts_is_logged_beside_that_of_the_trained_groups(
    backend: FastBackend, model: Any
) -> None:
    """So it is where the program died between the step and its log. A reward of NaN is in no mean."""
    await model.register(backend)
    pace = RolloutPace(lambda: 2, batch=lambda: 1)

    def training_steps() -> TrainingSteps:
        settings = pipeline_settings({})
        return TrainingSteps(model, backend, settings, options={}, is_art_backend=True, pace=pace)

    def finished(number: int, *rewards: float) -> FinishedGroup:
        numbered = NumberedScenario(number, {})
        return FinishedGroup(numbered=numbered, group=pair(rewards), version=0, seconds=0.0)

    steps = training_steps()
    await steps.open()
    batch = CollectedGroups(
        groups=[finished(0, 0.0, 1.0)],
        set_aside={"discarded": [finished(1, 1.0, 1.0)], "stale": [finished(2, math.nan, 0.0)]},
    )
    backend.die_after_commit = True
    with pytest.raises(ConnectionError):
        await steps.train(batch)
    await training_steps().open()
    (row,) = [row for row in logged(model)[0] if "train/reward" in row]
    assert row["train/reward"] == 0.5 and row["train/reward_all_rollouts"] == pytest.approx(3 / 5)


async def test_of_states_that_are_saved_at_once_the_newest_is_last(
    backend: FastBackend, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await model.register(backend)
    pace = RolloutPace(lambda: 2, batch=lambda: 1)
    steps = TrainingSteps(model, backend, pipeline_settings({}), options={}, is_art_backend=True, pace=pace)
    merge, written = model.merge_state, list[int]()

    def slow_at_first(state: dict[str, Any]) -> None:
        step = state[STATE_KEY]["training_step"]
        time.sleep(0.0 if step else 0.1)
        written.append(step)
        merge(state)

    monkeypatch.setattr(type(model), "merge_state", lambda _, state: slow_at_first(state))
    first = asyncio.create_task(steps.save())
    await asyncio.sleep(0.01)
    steps.state.training_step = 1
    await asyncio.gather(first, steps.save())
    assert written == [0, 1]


def test_the_state_of_an_earlier_release_is_read() -> None:
    job = {"job_id": "a", "step": 4, "scenarios": [1, 2]}
    assert PipelineState.from_dict({"training_job": job}).to_dict()["training_job"] == job

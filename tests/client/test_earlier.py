"""What became of the jobs of a program that was killed: their steps, and the rows of these steps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from wire_double import KEY, Double

import art
from art.client.requests.jobs import JobDeadlines
from art.tracking.folders import ModelPaths
from art.tracking.step_log import StepLog
from art.tracking.trajectory_log import read_trajectory_groups
from waiting import until


@pytest.fixture
async def registered(backend: art.RemoteBackend, model: art.TrainableModel) -> art.TrainableModel:
    await model.register(backend)
    return model


def leave(double: Double, job_id: str, *, running: bool) -> None:
    """A job of an earlier program: one group of one rollout."""
    group = {"trajectories": [{"rollout": "r", "reward": 1.0, "samples": []}], "failed": 0}
    double.jobs[job_id] = {"job_id": job_id, "groups": [group]}
    double.unfinished += [job_id] if running else []
    double.step += 1


@pytest.mark.parametrize("running", [False, True])
async def test_a_job_of_an_earlier_program_has_its_result(
    backend: art.RemoteBackend, registered: art.TrainableModel, double: Double, running: bool
) -> None:
    leave(double, "left", running=running)
    result = await backend.training_result(registered, "left")
    assert result is not None and result.step == 1 and result.metrics["data/sheet/trained_rollouts"] == 1
    assert len(double.events_after) == running, "one that runs is waited for"
    assert await backend.training_result(registered, "never sent") is None


async def test_a_job_that_failed_made_no_step(
    backend: art.RemoteBackend, registered: art.TrainableModel, double: Double
) -> None:
    leave(double, "left", running=True)
    double.script = [{"number": 1, "type": "error", "error": "no memory", "error_code": "TrainingError"}]
    assert await backend.training_result(registered, "left") is None
    assert await registered.get_step() == 1


async def test_the_step_is_that_of_the_jobs_that_were_left(
    backend: art.RemoteBackend,
    registered: art.TrainableModel,
    double: Double,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="art")
    leave(double, "left", running=True)
    leave(double, "also left", running=True)
    assert await registered.get_step() == 2 and double.unfinished == []
    assert await backend.checkpoint_steps(registered) == [0, 2]
    said = [line for line in caplog.messages if "waiting for training jobs" in line]
    assert len(said) == 1 and "left, also left" in said[0] and "24 hours" in said[0]

    leave(double, "of a program that runs", running=True)
    assert await registered.get_step() == 3 and len(double.unfinished) == 1, "its program waits for it"
    await registered.register(backend)
    assert await registered.get_step() == 3 and not double.unfinished, "this program has started over"


async def test_where_a_model_is_only_evaluated_no_job_is_asked_for(
    backend: art.RemoteBackend, registered: art.TrainableModel, double: Double
) -> None:
    leave(double, "left", running=True)
    ModelPaths.of_model(registered).under_way("left").mkdir(parents=True)
    (ModelPaths.of_model(registered).under_way("left") / ".owner").touch()
    backend.resumes_jobs = False
    assert (
        await registered.get_step() == 1
        and double.unfinished == ["left"]
        and not double.asked["/art/jobs/left"]
    )
    backend.resumes_jobs = True
    assert await registered.get_step() == 1 and not double.unfinished


async def test_a_left_job_that_does_not_end_is_an_error(
    server: str, double: Double, model: art.TrainableModel
) -> None:
    async with art.RemoteBackend(server, KEY, deadlines=JobDeadlines(idle_s=0.2)) as backend:
        await model.register(backend)
        leave(double, "left", running=True)
        double.silence_s, double.stays_unfinished = 60.0, True
        for _ in range(2):
            with pytest.raises(art.errors.DeadlineError, match="left"):
                await model.get_step()
        with pytest.raises(art.errors.DeadlineError, match="left"):
            await backend.training_result(model, "left")


def groups() -> list[art.TrajectoryGroup]:
    return [art.TrajectoryGroup([art.Trajectory(reward=1.0), art.Trajectory(reward=0.0)])]


def logged(model: Any) -> list[dict[str, Any]]:
    """The rows of training, of which the trajectories were checked."""
    folder = Path(model._get_output_dir())
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    files = sorted(folder.glob("trajectories/train/*.parquet"))
    assert [int(file.stem) for file in files] == [row["step"] for row in rows if "train/reward" in row]
    assert all([len(group) for group in read_trajectory_groups(file)] == [2] for file in files)
    assert not list(folder.glob("under_way/*"))
    return rows


class Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["asked", "committed", "moved", "logged"])
@pytest.mark.parametrize("kind", ["rl", "sft"])
async def test_a_step_whose_program_was_stopped_is_logged_once(
    backend: art.RemoteBackend,
    registered: art.TrainableModel,
    double: Double,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    kind: str,
) -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]

    async def train() -> art.TrainResult:
        if kind == "sft":
            return await registered.train_sft([{"messages": talk}])
        return await registered.train(groups())

    async def killed(*_: Any, **__: Any) -> None:
        raise Killed

    place, name = {
        "asked": (art.client.backends.remote_backend, "run_job"),
        "committed": (StepLog, "write"),
        "moved": (StepLog, "_row"),
        "logged": (StepLog, "_delete_job"),
    }[moment]
    with monkeypatch.context() as here, pytest.raises(Killed):
        here.setattr(place, name, killed)
        await train()

    again = art.TrainableModel(
        name="agent", project="games", base_model="art/nano", base_path=registered.base_path
    )
    await again.register(backend)
    made = 0 if moment == "asked" else 1
    assert [await again.get_step() for _ in range(2)] == [made, made]
    registered = again
    await train()
    rows = logged(again)
    assert [row["step"] for row in rows] == [*range(1, made + 2)]
    assert all(row["data/sheet/started_rollouts"] == (2 if kind == "rl" else 1) for row in rows)


async def test_the_step_is_told_while_this_program_trains(
    backend: art.RemoteBackend, registered: art.TrainableModel, double: Double
) -> None:
    double.silence_s = 600.0
    training = asyncio.create_task(registered.train(groups()))
    await until(lambda: double.events_after)
    double.unfinished += double.jobs
    for _ in range(2):
        assert await asyncio.wait_for(registered.get_step(), 60) == 1
    assert not (Path(registered._get_output_dir()) / "history.jsonl").exists(), "its own program logs it"

    # The cell of a notebook that is stopped: nobody waits for the job, so the next one does.
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training
    double.silence_s = 0.0
    assert await registered.get_step() == 1 and not double.unfinished
    assert [row["step"] for row in logged(registered)] == [1]


async def test_a_log_that_is_refused_does_not_keep_a_program_from_going_on(
    registered: art.TrainableModel, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("no such metric")

    with monkeypatch.context() as here:
        here.setattr(StepLog, "_row", refuse)
        with pytest.raises(ValueError, match="no such metric"):
            await registered.train(groups())
        assert await registered.get_step() == 1
    assert await registered.get_step() == 1
    file = ModelPaths.of_model(registered).trajectories / "train" / "0001.parquet"
    assert len(read_trajectory_groups(file)) == 1


async def test_a_named_job_with_stale_and_discarded_groups_goes_out_as_it_is(
    backend: art.RemoteBackend, registered: art.TrainableModel, double: Double
) -> None:
    def group(reward: float) -> art.TrajectoryGroup:
        return art.TrajectoryGroup([art.Trajectory(reward=reward), ValueError("x")])

    double.script = None
    with pytest.raises(art.errors.UnbalancedSheetError):  # the double does not count what was discarded
        await backend.train(
            registered, [group(1.0)], discarded_groups=[group(0.0)], max_steps_off_policy=3, job_id="mine"
        )
    sent = double.jobs["mine"]
    assert sent["max_steps_off_policy"] == 3 and len(sent["groups"]) == len(sent["discarded"]) == 1
    names = [one["rollout"] for part in ("groups", "discarded") for one in sent[part][0]["trajectories"]]
    assert len(set(names)) == 2

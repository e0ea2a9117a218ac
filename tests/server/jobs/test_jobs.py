"""Jobs are accepted once, run in order, told as numbered events, and survive everything that is not their
fault.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from homes import Home

from art.errors import (
    CanaryError,
    ConfigurationError,
    NotFoundError,
    OverloadedError,
    RequestError,
    WorkerDiedError,
    WorkerError,
)
from art.server.jobs.job_store import JobStore
from art.server.jobs.job_table import JobTable, TrainingJob
from art.server.jobs.training_jobs import RunJob, TrainingJobs
from art.server.promotion.promote import Progress
from art.server.settings import ControlSettings
from art.wire.jobs import JobEvent, TrainJobRequest, TrainResultInfo
from waiting import DEADLINE_S, until

RESULT = TrainResultInfo(step=1, metrics={"loss/train": 0.5}, sheet={})


def request(job_id: str = "job", rate: float = 1e-3) -> TrainJobRequest:
    return TrainJobRequest(job_id=job_id, groups=[], optimizer={"learning_rate": rate})


class Bench:
    """Jobs over a real store, with `run` in place of a trainer."""

    def __init__(self, store: JobTable, run: RunJob, **settings: float) -> None:
        self.failures: list[str] = []
        self.jobs = TrainingJobs(
            store,
            run=run,
            trainer_of=self.trainer_of,
            worker_failed=self.worker_failed,
            settings=ControlSettings(**{"heartbeat": 0.05, **settings}),
        )

    @staticmethod
    def trainer_of(project: str, name: str) -> str:
        if name == "unknown":
            raise NotFoundError("no such model", status=404)
        return "base"

    async def worker_failed(self, job: TrainingJob, error: WorkerError) -> None:
        self.failures.append(str(error))

    async def events(self, job_id: str, after: int = 0) -> list[JobEvent]:
        async with asyncio.timeout(DEADLINE_S):
            lines = [line async for line in self.jobs.events(job_id, after)]
        return [JobEvent.model_validate_json(line) for line in lines if line.strip()]


async def succeed(job: TrainingJob, progress: Progress) -> TrainResultInfo:
    await progress("training", done=1, total=2)
    return RESULT


@contextlib.asynccontextmanager
async def bench(home: Home, run: RunJob = succeed, **settings: float) -> AsyncIterator[Bench]:
    made = Bench(await home.open_jobs(), run, **settings)
    try:
        yield made
    finally:
        await made.jobs.close()


async def test_a_job_runs_and_tells_numbered_events(home: Home) -> None:
    async with bench(home) as it:
        assert (await it.jobs.submit("p", "m", request())).state in {"queued", "running", "done"}
        events = await it.events("job")
        info = await it.jobs.info("job")
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert [(event.type, event.phase) for event in events[:2]] == [
        ("state", "queued"),
        ("progress", "training"),
    ]
    assert events[-1].type == "result" and events[-1].result == RESULT
    assert info.state == "done" and info.result == RESULT and info.model == "p/m"


async def test_a_lost_reply_can_be_asked_for_again(home: Home) -> None:
    runs = 0

    async def count(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        nonlocal runs
        runs += 1
        return RESULT

    async with bench(home, count) as it:
        await asyncio.gather(*(it.jobs.submit("p", "m", request()) for _ in range(5)))
        await it.events("job")
        assert (await it.jobs.submit("p", "m", request())).state == "done"
        with pytest.raises(RequestError, match="exists with other content") as refused:
            await it.jobs.submit("p", "m", request(rate=1.0))
        with pytest.raises(RequestError, match="exists with other content"):
            await it.jobs.submit("p", "other", request())
    assert runs == 1 and refused.value.status == 409


async def test_a_job_for_an_unknown_model_is_not_accepted(home: Home) -> None:
    async with bench(home) as it:
        with pytest.raises(NotFoundError):
            await it.jobs.submit("p", "unknown", request())
        with pytest.raises(NotFoundError, match="no job 'job'"):
            await it.jobs.info("job")


@pytest.mark.parametrize("job_id", ["", "x" * 201])
async def test_an_unfit_job_id_is_refused(home: Home, job_id: str) -> None:
    async with bench(home) as it:
        with pytest.raises(RequestError, match="1 to 200 characters"):
            await it.jobs.submit("p", "m", request(job_id))


async def test_a_dropped_stream_goes_on_where_it_was(home: Home) -> None:
    go_on = asyncio.Event()

    async def slow(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        await progress("preparing")
        await go_on.wait()
        await progress("training")
        return RESULT

    async with bench(home, slow) as it:
        await it.jobs.submit("p", "m", request())
        seen = 0
        async with asyncio.timeout(DEADLINE_S):
            async for line in it.jobs.events("job", 0):
                if line != b"\n":
                    seen = JobEvent.model_validate_json(line).number
                elif seen == 2:  # a slow machine has a heartbeat between "queued" and "preparing" too
                    break
        assert seen == 2, "queued, preparing, then a heartbeat"
        go_on.set()
        rest = await it.events("job", after=seen)
        assert [event.number for event in rest] == [3, 4] and rest[-1].type == "result"
        assert await it.events("job", after=4) == []


async def test_jobs_of_one_trainer_run_one_at_a_time_in_their_order(home: Home) -> None:
    running: list[str] = []
    order: list[str] = []

    async def alone(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        running.append(job.job_id)
        await asyncio.sleep(0.005)
        assert running == [job.job_id]
        running.clear()
        order.append(job.job_id)
        return RESULT

    async with bench(home, alone) as it:
        for number in range(5):
            await it.jobs.submit("p", f"m{number % 2}", request(f"job-{number}"))
        await it.events("job-4")
    assert order == [f"job-{number}" for number in range(5)]


async def test_tenants_take_turns_then_their_models_and_a_flood_keeps_nobody_waiting(home: Home) -> None:
    order: list[str] = []
    go_on = asyncio.Event()

    async def note(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        await go_on.wait()
        order.append(job.job_id)
        return RESULT

    async with bench(home, note) as it:
        for number in range(4):
            await it.jobs.submit("a~p", "x", request(f"ax{number}"))
        for project, name, job_id in (
            ("a~p", "y", "ay0"),
            ("b~p", "z", "bz0"),
            ("p", "own", "own0"),
            ("b~p", "z", "bz1"),
        ):
            await it.jobs.submit(project, name, request(job_id))
        go_on.set()
        await it.events("ax3")
    # ax0 was taken when it came; from then on a, b and the operator take turns.
    assert order == ["ax0", "ax1", "bz0", "own0", "ay0", "bz1", "ax2", "ax3"]


async def test_a_model_has_so_many_jobs_at_a_time_and_no_other_model_suffers(home: Home) -> None:
    go_on = asyncio.Event()

    async def wait(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        await go_on.wait()
        return RESULT

    async with bench(home, wait, queued_jobs=2) as it:
        for name in ("first", "second"):
            await it.jobs.submit("p", "m", request(name))
        with pytest.raises(
            OverloadedError, match="p/m has 2 unfinished training jobs, the limit is 2"
        ) as full:
            await it.jobs.submit("p", "m", request("third"))
        assert (full.value.status, full.value.code) == (429, "job_queue_full")
        assert (await it.jobs.submit("p", "m", request("second"))).state == "queued", "it was accepted before"
        await it.jobs.submit("p", "other", request("others"))
        go_on.set()
        assert (await it.events("others"))[-1].type == "result"
        await it.events("second")
        await it.jobs.submit("p", "m", request("third"))
        assert (await it.events("third"))[-1].type == "result"


async def test_what_was_running_goes_on_first_after_a_restart(home: Home) -> None:
    async def hang(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        await progress("training")
        await asyncio.sleep(600)
        return RESULT

    async with bench(home, hang) as it:
        store = it.jobs.store
        await store.submit("a~p", "x", request("older"))
        await it.jobs.submit("b~p", "z", request("running"))
        async for line in it.jobs.events("running", 1):
            if line.strip():
                break
    async with bench(home) as it:
        assert [ticket.job_id for ticket in await it.jobs.hold_unfinished()] == ["running", "older"]
        it.jobs.resume_all()
        await it.events("older")


async def test_a_failed_job_is_told_by_name_and_the_next_one_runs(home: Home) -> None:
    async def fail_first(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        if job.job_id == "job":
            raise CanaryError("the engine computes something else")
        if job.job_id == "defect":
            raise ZeroDivisionError("1/0")
        return RESULT

    async with bench(home, fail_first) as it:
        for name in ("job", "defect", "next"):
            await it.jobs.submit("p", "m", request(name))
        failed, defect, following = [(await it.events(name))[-1] for name in ("job", "defect", "next")]
        assert (failed.type, failed.error_code) == ("error", "CanaryError")
        assert failed.error == "the engine computes something else"
        assert defect.error_code == "internal_error" and "1/0" in str(defect.error)
        assert following.type == "result"
        assert (await it.jobs.info("job")).state == "failed"


async def test_a_job_is_tried_again_when_a_worker_failed_under_it(home: Home) -> None:
    attempts = 0

    async def third_time(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise WorkerDiedError(f"death {attempts}")
        return RESULT

    async with bench(home, third_time) as it:
        await it.jobs.submit("p", "m", request())
        assert (await it.events("job"))[-1].type == "result"
        assert it.failures == ["death 1", "death 2"]


async def test_attempts_and_time_are_limited(home: Home) -> None:
    async def hang(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        await asyncio.sleep(600)
        return RESULT

    async with bench(home, hang, job=0.05, job_attempts=2) as it:
        await it.jobs.submit("p", "m", request())
        last = (await it.events("job"))[-1]
        assert last.error_code == "WorkerStalledError" and "not done within 0.05 s" in str(last.error)
        assert len(it.failures) == 2


async def test_unfinished_jobs_go_on_after_a_restart_in_their_order(home: Home) -> None:
    async def hang(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        await progress("training")
        await asyncio.sleep(600)
        return RESULT

    async with bench(home, hang) as it:
        for name in ("first", "second"):
            await it.jobs.submit("p", "m", request(name))
        async for line in it.jobs.events("first", 1):
            if line.strip():
                break
    async with bench(home) as it:
        assert [job.job_id for job in await it.jobs.hold_unfinished()] == ["first", "second"]
        it.jobs.resume("p/m")
        events = await it.events("first")
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert events[-1].type == "result"
        await it.events("second")
    async with bench(home) as it:
        assert await it.jobs.hold_unfinished() == []


async def test_another_versions_table_is_refused(tmp_path: Path) -> None:
    import sqlite3

    database = sqlite3.connect(tmp_path / "jobs.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ConfigurationError, match="version 99"):
        JobStore(tmp_path / "jobs.sqlite")


async def test_a_job_whose_model_is_gone_fails_by_name_at_the_restart(home: Home) -> None:
    store = await home.open_jobs()
    await store.submit("p", "unknown", request("lost"))
    await store.submit("p", "m", request("kept"))
    await store.close()
    async with bench(home) as it:
        assert [job.job_id for job in await it.jobs.hold_unfinished()] == ["kept"]
        it.jobs.resume_all()
        assert (await it.events("lost"))[-1].error == "no such model"
        assert (await it.events("kept"))[-1].type == "result"


@pytest.mark.parametrize("coming_back", ["asks for its job", "sends it again", "sends another"])
async def test_an_unfinished_job_goes_on_when_its_own_program_comes_back(
    home: Home, coming_back: str
) -> None:
    ran: list[str] = []

    async def run(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        ran.append(job.job_id)
        return RESULT

    store = await home.open_jobs()
    await store.submit("p", "m", request("left"))
    await store.submit("p", "others", request("others-left"))
    await store.close()
    async with bench(home, run) as it:
        await it.jobs.hold_unfinished()
        await it.jobs.submit("p", "third", request("new"))
        await it.events("new")
        assert ran == ["new"], "a job of another model resumes none"
        assert it.jobs.busy("p/m") and it.jobs.busy("p/others")
        if coming_back == "asks for its job":
            assert (await it.jobs.info("left")).state == "queued"
        else:
            await it.jobs.submit("p", "m", request("left" if coming_back == "sends it again" else "next"))
        assert (await it.events("left"))[-1].type == "result"
        assert ran[:2] == ["new", "left"] and "others-left" not in ran
        assert it.jobs.busy("p/others")


async def test_jobs_that_ended_leave_nothing_in_memory(home: Home) -> None:
    """Some have no follower, some one that hangs up while they run, some one that comes late."""

    def held(jobs: TrainingJobs) -> dict[str, int]:
        return {name: len(value) for name, value in vars(jobs).items() if hasattr(value, "__len__")}

    released = asyncio.Event()

    async def wait(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        await progress("training")
        await released.wait()
        return RESULT

    async with bench(home, wait) as it:
        seen = []
        for number in range(9):
            released.clear()
            await it.jobs.submit("p", "n", request(f"job-{number}"))
            if number % 3 == 0:
                following = it.jobs.events(f"job-{number}", 0)
                async for _ in following:
                    break
                await following.aclose()
            released.set()
            if number % 3 == 1:
                await it.events(f"job-{number}")
            await until(lambda: not it.jobs.busy("p/n"))
            seen.append(held(it.jobs))
        assert seen[-1] == seen[1], "the first job begins a queue"

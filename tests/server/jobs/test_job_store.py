"""All kinds of jobs survive on disk; a large one is kept as long as it is needed."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from homes import Home

from art.errors import NotFoundError, RequestError
from art.server.jobs.job_store import LISTED, JobStore
from art.wire.jobs import ExtensionJobRequest, SftJobRequest, TrainJobRequest, TrainResultInfo

OPTIMIZER = {"learning_rate": None}


def learn(job_id: str, text: str = "yes") -> SftJobRequest:
    message = {"role": "assistant", "content": text}
    return SftJobRequest(
        job_id=job_id,
        conversations=[{"name": "c", "messages": [message]}],
        batches=[[0]],
        learning_rates=[1e-3],
        optimizer=OPTIMIZER,
    )


async def test_each_kind_is_read_back_as_what_it_was(home: Home) -> None:
    store = await home.open_jobs()
    asked = [
        learn("a"),
        ExtensionJobRequest(
            **learn("e").model_dump(), job="dpo", algorithm={"name": "dpo"}, options={"desirable": [0]}
        ),
        TrainJobRequest(job_id="b", groups=[], optimizer=OPTIMIZER),
        TrainJobRequest(
            job_id="c",
            groups=[
                {
                    "trajectories": [
                        {
                            "rollout": "r",
                            "reward": 1.0,
                            "samples": ["s"],
                            "given": [{"messages": [{"role": "assistant"}], "samples": {0: "s"}}],
                        }
                    ]
                }
            ],
            optimizer=OPTIMIZER,
        ),
    ]
    for request in asked:
        assert await store.submit("p", "n", request)
    await store.close()
    store = await home.open_jobs()
    assert [(await store.job(one.job_id)).request for one in await store.unfinished()] == asked
    assert [one.kind for one in (await store.listed(None)).jobs] == ["rl", "rl", "preference", "sft"]
    await store.close()


async def test_of_a_large_request_the_settings_are_kept_when_its_job_has_ended(home: Home) -> None:
    store = await home.open_jobs()
    large = learn("large", "x" * 2_000_000)
    assert await store.submit("p", "n", large)
    assert [(await store.job(one.job_id)).request for one in await store.unfinished()] == [large]
    await store.finish("large", TrainResultInfo(step=1, metrics={}, sheet={}))
    assert not await store.submit("p", "n", large), "sent again, it is the same job"
    assert (await store.info("large")).state == "done"
    ((kept,),) = home.sql("SELECT request FROM jobs", of_jobs=True)
    settings = json.loads(kept)
    assert settings["optimizer"]["learning_rate"] == large.optimizer.learning_rate
    assert len(kept) < 1000 and not {"batches", "conversations", "learning_rates"} & settings.keys()
    with pytest.raises(RequestError, match="exists with other content"):
        await store.submit("p", "n", learn("large", "y" * 2_000_000))
    await store.close()


RESULT = TrainResultInfo(step=3, metrics={}, sheet={})


async def test_the_list_of_jobs_newest_first_with_what_is_known_of_each(home: Home) -> None:
    store = await home.open_jobs()
    for name in ("done", "failed", "running", "queued"):
        await store.submit("p", "n", learn(name) if name == "failed" else group_job(name))
    await store.progress("done", "training")
    await store.finish("done", RESULT)
    await store.fail("failed", "it broke", "TrainingError")
    await store.progress("running", "training", done=5, total=9)
    queued, running, failed, done = (await store.listed(None)).jobs
    assert [one.job_id for one in (queued, running, failed, done)] == ["queued", "running", "failed", "done"]
    assert (queued.state, queued.phase, queued.started_at, queued.kind) == ("queued", "queued", None, "rl")
    assert (running.state, running.phase, running.done, running.total) == ("running", "training", 5, 9)
    assert (failed.kind, failed.error_code, failed.step) == ("sft", "TrainingError", None)
    assert (done.state, done.step, done.model) == ("done", 3, "p/n")
    assert done.started_at is not None and done.ended_at is not None
    assert done.created_at <= done.started_at <= done.ended_at
    assert [one.job_id for one in (await store.listed(None, state="running")).jobs] == ["running"]
    await store.close()


async def test_pages_of_jobs_leave_none_out(home: Home) -> None:
    store = await home.open_jobs()
    for number in range(23):
        await store.submit("alice~p" if number % 2 else "p", f"m{number % 3}", group_job(f"j{number}"))
    seen, before = [], None
    while True:
        page = await store.listed(None, before=before, limit=5)
        seen += [one.job_id for one in page.jobs]
        await store.submit("p", "m0", group_job(f"later{len(seen)}"))  # new ones move no page
        if (before := page.before) is None:
            break
    assert seen == [f"j{number}" for number in reversed(range(23))]
    with pytest.raises(NotFoundError, match="no job 'nobody'"):
        await store.listed(None, before="nobody")
    mine = await store.listed("alice", limit=500)
    assert {one.model.partition("~")[0] for one in mine.jobs} == {"alice"} and len(mine.jobs) == 11
    assert not (await store.listed("ali")).jobs and not (await store.listed("alice_")).jobs
    of_model = await store.listed(None, model="p/m0")
    assert {one.model for one in of_model.jobs} == {"p/m0"}
    await store.close()


async def test_the_list_reads_no_request(tmp_path: Path) -> None:
    """A page is read from the index alone, however large the requests are."""
    store = JobStore(tmp_path / "jobs.sqlite")
    await store.submit("p", "n", learn("large", "x" * 200_000))
    query = f"SELECT {', '.join(LISTED)} FROM jobs INDEXED BY listed WHERE number < 9 ORDER BY number DESC"
    plan = store._database.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
    assert "USING COVERING INDEX listed" in plan[0][3] and len(plan) == 1, plan
    await store.close()


async def test_a_table_of_an_older_release_is_extended(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    store = JobStore(path)
    await store.submit("p", "n", group_job("old"))
    await store.close()
    with sqlite3.connect(path) as older:
        older.execute("DROP INDEX listed")
        for column in ("kind", "started_at", "step"):
            older.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
    older.close()
    store = JobStore(path)
    (old,) = (await store.listed(None)).jobs
    assert (old.job_id, old.kind, old.state) == ("old", None, "queued")
    await store.finish("old", RESULT)
    assert (await store.listed(None)).jobs[0].step == 3
    await store.close()


def group_job(job_id: str) -> TrainJobRequest:
    return TrainJobRequest(job_id=job_id, groups=[], optimizer=OPTIMIZER)


async def test_a_shortened_job_is_the_same_job_and_its_end_is_the_next_event(home: Home) -> None:
    store = await home.open_jobs()
    made, failed = learn("made"), learn("failed")
    for request in (made, failed):
        assert await store.submit("p", "n", request)
        await store.progress(request.job_id, "training", done=1, total=2)
    result = TrainResultInfo(step=3, metrics={"loss": 0.5}, sheet={})
    await store.finish("made", result)
    await store.fail("failed", "no memory", "worker_failed")
    listed = await store.listed(None)
    infos = [await store.info(one) for one in ("made", "failed")]
    await store.shorten(["made", "failed"])
    await store.close()
    store = await home.open_jobs()
    assert not await store.submit("p", "n", made), "sent again, it is the same job"
    with pytest.raises(RequestError, match="exists with other content"):
        await store.submit("p", "n", learn("made", "no"))
    assert await store.listed(None) == listed and await store.newest_step("p", "n") == 3
    assert [await store.info(one) for one in ("made", "failed")] == infos
    for after in (0, 1, 7):  # whoever follows it misses no number
        (end,) = await store.events("made", after)
        assert (end.number, end.type, end.result) == (after + 1, "result", result)
    (end,) = await store.events("failed", 0)
    assert (end.number, end.type, end.error, end.error_code) == (1, "error", "no memory", "worker_failed")
    requests = home.sql("SELECT request FROM jobs ORDER BY number", of_jobs=True)
    for (kept,) in requests:
        settings = json.loads(kept)
        assert settings["optimizer"] and not {"batches", "conversations"} & settings.keys()
    await store.close()


async def test_old_jobs_are_those_before_a_step_and_what_failed_before_them(home: Home) -> None:
    store = await home.open_jobs()
    for number in range(1, 9):
        name = "other" if number == 2 else "n"
        await store.submit("p", name, learn(f"j{number}"))
        if number in (3, 7):
            await store.fail(f"j{number}", "no", "internal_error")
        elif number != 8:
            await store.finish(f"j{number}", TrainResultInfo(step=number, metrics={}, sheet={}))
    assert await store.ended_before("p", "n", 6, 0) == [
        (1, "j1", 1),
        (3, "j3", -1),
        (4, "j4", 4),
        (5, "j5", 5),
    ]
    assert await store.ended_before("p", "n", 6, 4) == [(5, "j5", 5)]
    assert await store.ended_before("p", "n", 1, 0) == await store.ended_before("p", "n", 6, 5) == []
    await store.close()

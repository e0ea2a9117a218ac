"""Both kinds of jobs survive on disk; a large one is kept as long as it is needed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from art.errors import RequestError
from art.server.jobs.job_store import JobStore
from art.wire.jobs import SftJobRequest, TrainJobRequest, TrainResultInfo

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


async def test_each_kind_is_read_back_as_what_it_was(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    asked = [
        learn("a"),
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
    store = JobStore(tmp_path / "jobs.sqlite")
    assert [(await store.job(one.job_id)).request for one in await store.unfinished()] == asked
    await store.close()


async def test_a_large_request_is_dropped_when_its_job_has_ended(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    large = learn("large", "x" * 2_000_000)
    assert await store.submit("p", "n", large)
    assert [(await store.job(one.job_id)).request for one in await store.unfinished()] == [large]
    await store.finish("large", TrainResultInfo(step=1, metrics={}, sheet={}))
    assert not await store.submit("p", "n", large), "sent again, it is the same job"
    assert (await store.info("large")).state == "done"
    with sqlite3.connect(store.path) as file:
        assert file.execute("SELECT length(request) FROM jobs").fetchall() == [(0,)]
    with pytest.raises(RequestError, match="exists with other content"):
        await store.submit("p", "n", learn("large", "y" * 2_000_000))
    await store.close()

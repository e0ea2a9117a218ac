"""One server at a time is the controller, and who is it no more commits nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from homes import Home
from private_postgres import PrivatePostgres

from art.errors import RequestError
from art.server.shared_store import LostControlError
from art.wire.jobs import TrainJobRequest, TrainResultInfo
from art_extensions.postgres.gateways import ControllerLock
from art_extensions.postgres.jobs import PostgresJobStore
from art_extensions.postgres.shared import open_shared
from waiting import DEADLINE_S

pytestmark = pytest.mark.slow

RESULT = TrainResultInfo(step=1, metrics={}, sheet={})
END_SESSION = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7273003"


def request(job_id: str) -> TrainJobRequest:
    return TrainJobRequest(job_id=job_id, groups=[], optimizer={"learning_rate": 1e-3})


@pytest.fixture
async def shared(postgres: PrivatePostgres, tmp_path: Path) -> AsyncIterator[Home]:
    made = Home(tmp_path, postgres.create_database(), postgres)
    yield made
    await made.close()


async def test_one_holds_the_lock_and_the_next_has_it_when_that_ends(shared: Home) -> None:
    first = await ControllerLock.acquire(await shared.database(), on_wait=lambda holder: None)
    holders: list[str] = []
    waiting = asyncio.create_task(ControllerLock.acquire(await shared.database(), on_wait=holders.append))
    async with asyncio.timeout(DEADLINE_S):
        while not holders:  # noqa: ASYNC110 - it is told by a call
            await asyncio.sleep(0.05)
    assert not waiting.done() and ":" in holders[0]
    await first.require()
    await first.release()
    async with asyncio.timeout(DEADLINE_S):
        second = await waiting
    assert second.epoch == first.epoch + 1
    await second.require()
    await second.release()


async def test_who_lost_the_lock_commits_nothing_and_the_next_goes_on_with_the_job(shared: Home) -> None:
    database = await shared.database()
    old = await ControllerLock.acquire(database, on_wait=lambda holder: None)
    before = await PostgresJobStore.open(database, epoch=old.epoch)
    assert await before.submit("p", "n", request("job"))
    await before.progress("job", "training", done=1, total=3)
    old._watching.cancel()  # else it might have the lock again before the other asks
    shared.sql(END_SESSION)
    other = await shared.database()
    new = await ControllerLock.acquire(other, on_wait=lambda holder: None)
    after = await PostgresJobStore.open(other, epoch=new.epoch)
    for write in (
        before.progress("job", "training", done=2, total=3),
        before.finish("job", RESULT),
        before.fail("job", "no", "no"),
        before.submit("p", "n", request("second")),
    ):
        with pytest.raises(LostControlError, match="another server is the controller"):
            await write
    with pytest.raises(LostControlError, match="another server took over"):
        await old.require()
    async with asyncio.timeout(DEADLINE_S):
        await old.lost.wait()
    assert [one.job_id for one in await after.unfinished()] == ["job"]
    assert [event.done for event in await after.events("job", 0)] == [0, 1]
    await after.finish("job", RESULT)
    assert (await before.info("job")).state == "done", "reading is for everybody"
    for store, lock in ((before, old), (after, new)):
        await store.close()
        await lock.release()


async def test_a_controller_whose_database_was_away_is_the_controller_again(
    durable: PrivatePostgres, tmp_path: Path
) -> None:
    shared = Home(tmp_path, durable.create_database(), durable)
    database = await shared.database()
    lock = await ControllerLock.acquire(database, on_wait=lambda holder: None)
    jobs = await PostgresJobStore.open(database, epoch=lock.epoch)
    assert await jobs.submit("p", "n", request("job"))
    for away in ("a killed database", "an ended session"):
        if away == "a killed database":
            await asyncio.to_thread(durable.kill)
            asking = asyncio.create_task(lock.require())
            await asyncio.sleep(3.0)
            assert not asking.done() and not lock.lost.is_set()
            await asyncio.to_thread(durable.start)
        else:
            shared.sql(END_SESSION)
            asking = asyncio.create_task(lock.require())
        async with asyncio.timeout(DEADLINE_S):
            await asking
        await jobs.progress("job", "training", done=1, total=3)
        assert not lock.lost.is_set()
        holders: list[str] = []
        waiting = asyncio.create_task(ControllerLock.acquire(await shared.database(), on_wait=holders.append))
        async with asyncio.timeout(DEADLINE_S):
            while not holders:  # noqa: ASYNC110 - it is told by a call
                await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await jobs.close()
    await lock.release()
    await shared.close()


async def test_the_next_controller_waits_for_a_commit_that_is_under_way(shared: Home) -> None:
    """Its number is given only after the last commit of the one before: nothing comes later."""
    database = await shared.database()
    old = await ControllerLock.acquire(database, on_wait=lambda holder: None)
    before = await PostgresJobStore.open(database, epoch=old.epoch)
    entered, may_end = asyncio.Event(), asyncio.Event()

    async def slow(connection: object) -> None:
        entered.set()
        await may_end.wait()

    committing = asyncio.create_task(before._write(slow))
    await entered.wait()
    old._watching.cancel()
    shared.sql(END_SESSION)
    taking = asyncio.create_task(ControllerLock.acquire(await shared.database(), on_wait=lambda holder: None))
    await asyncio.sleep(1.5)
    assert not taking.done()
    may_end.set()
    await committing
    async with asyncio.timeout(DEADLINE_S):
        new = await taking
    assert new.epoch == old.epoch + 1
    await before.close()
    await old.release()
    await new.release()


async def test_a_server_that_is_asked_to_end_while_it_waits_ends(shared: Home) -> None:
    first = await open_shared(shared.url, None)
    assert first is not None
    ended = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(open_shared(shared.url, ended))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    ended.set_result(None)
    async with asyncio.timeout(DEADLINE_S):
        assert await waiting is None
    await first.close()


async def test_a_job_s_id_is_one_job_for_every_server(shared: Home) -> None:
    database = await shared.database()
    stores = [await PostgresJobStore.open(database, epoch=None) for _ in range(3)]
    new = await asyncio.gather(*(store.submit("p", "n", request("same")) for store in stores))
    assert sorted(new) == [False, False, True]
    with pytest.raises(RequestError, match="exists with other content"):
        await stores[1].submit("p", "other", request("same"))
    for store in stores:
        await store.close()

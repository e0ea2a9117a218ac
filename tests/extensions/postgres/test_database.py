"""What was told as committed is there, once, however connections and the database itself end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from homes import Home
from made_samples import sample
from private_postgres import PASSWORD, PrivatePostgres

from art.errors import ARTError, ConfigurationError
from art.server.ledger.face import LedgerError
from art_extensions.postgres.database import (
    CommitLane,
    Connection,
    DatabaseError,
    PostgresDatabase,
    parse_address,
)
from art_extensions.postgres.samples import DAY_SECONDS, PostgresLedger, partition_of
from waiting import DEADLINE_S

pytestmark = pytest.mark.slow


@pytest.fixture
async def shared(postgres: PrivatePostgres, tmp_path: Path) -> AsyncIterator[Home]:
    made = Home(tmp_path, postgres.create_database(), postgres)
    yield made
    await made.close()


async def test_a_killed_database_keeps_what_was_committed_and_takes_the_rest_later(
    durable: PrivatePostgres, tmp_path: Path
) -> None:
    home, chance = Home(tmp_path, durable.create_database(), durable), random.Random(17)
    ledger, committed, ended = await home.open_ledger(), list[str](), asyncio.Event()

    async def write(worker: int) -> None:
        n = 0
        while not ended.is_set():
            name = f"{worker}-{n}"
            await ledger.writer.append([sample(name, range(n % 7 + 1), range(n % 5 + 1))])
            committed.append(name)
            n += 1

    writers = [asyncio.create_task(write(worker)) for worker in range(16)]
    for _ in range(3):
        before = len(committed)
        async with asyncio.timeout(DEADLINE_S):
            while len(committed) < before + 200:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(chance.random() / 20)
        await asyncio.to_thread(durable.kill)
        await asyncio.to_thread(durable.start)
    ended.set()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*writers)
    for name, record in zip(committed, await ledger.samples(committed), strict=True):
        n = int(name.partition("-")[2])
        assert record == sample(name, range(n % 7 + 1), range(n % 5 + 1))
    assert home.sql("SELECT count(*) FROM samples") == [(len(committed),)], "each once, and no other"
    await ledger.close()
    await home.close()


async def test_a_database_that_stays_away_is_an_error_that_says_so(
    durable: PrivatePostgres, tmp_path: Path
) -> None:
    url = durable.create_database()
    database = await PostgresDatabase.open(parse_address(url), patience=4.0)
    ledger = await PostgresLedger.open(database, tmp_path)
    await ledger.writer.append([sample("before")])
    await asyncio.to_thread(durable.kill)
    try:
        with pytest.raises(
            LedgerError, match=r"cannot write 1 samples.*did not commit within 4 s"
        ) as refused:
            await ledger.writer.append([sample("refused")])
        with pytest.raises(LedgerError, match="cannot read the ledger") as unread:
            await ledger.samples(["before"])
        assert PASSWORD not in f"{refused.value} {unread.value}"
    finally:
        await asyncio.to_thread(durable.start)
    await ledger.writer.append([sample("after")])
    assert [one.sample_id for one in await ledger.samples(["before", "after"])] == ["before", "after"]
    assert not await ledger.known(["refused"], tenant=None), "what was refused is not there"
    await ledger.close()
    await database.close()


async def test_a_session_that_ends_in_a_commit_leaves_the_transaction_done_once(shared: Home) -> None:
    database = await shared.database()
    await database.prepare_tables("counted", 1, "CREATE TABLE counted (number INTEGER)")
    lanes, ended = [database.lane() for _ in range(3)], asyncio.Event()
    tried = 0

    async def commit(lane: CommitLane, number: int) -> None:
        async def work(connection: Connection) -> None:
            nonlocal tried
            tried += 1
            await connection.execute("INSERT INTO counted VALUES ($1)", number)

        await lane.commit(work)

    async def work_through(lane: CommitLane, first: int) -> int:
        number = first
        while not ended.is_set():
            await commit(lane, number)
            number += 3
        return (number - first) // 3

    workers = [asyncio.create_task(work_through(lane, first)) for first, lane in enumerate(lanes)]
    query = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND (query LIKE 'UPDATE lanes%' OR query LIKE 'COMMIT%')"
    )
    for _ in range(25):
        await asyncio.to_thread(shared.sql, query)
    ended.set()
    async with asyncio.timeout(DEADLINE_S):
        done = sum(await asyncio.gather(*workers))
    assert shared.sql("SELECT count(*), count(DISTINCT number) FROM counted") == [(done, done)]
    assert tried > done, "sessions did end in the middle of transactions"
    for lane in lanes:
        await lane.close()


async def test_a_day_has_a_partition_that_goes_with_its_last_sample(shared: Home) -> None:
    ledger = await shared.open_ledger(removes=True)
    for day in range(3):
        for n in range(2):
            created = day * DAY_SECONDS + n * (DAY_SECONDS - 1.0)
            await ledger.writer.append([sample(f"{day}-{n}", created_at=created)])
    tables = "SELECT relid::regclass::text FROM pg_partition_tree('samples') WHERE isleaf ORDER BY 1"
    assert shared.sql(tables) == [(partition_of(day),) for day in range(3)]
    assert await ledger.remove(["0-0", "1-0", "1-1"]) == 3
    assert shared.sql(tables) == [(partition_of(0),), (partition_of(2),)]
    other = await shared.open_ledger()
    assert await other.remove(["0-1"]) == 1
    await ledger.writer.append([sample("late", created_at=5.0)])  # who writes did not see the day go
    assert shared.sql(tables) == [(partition_of(0),), (partition_of(2),)]
    assert [one.sample_id for one in await ledger.samples(["2-0", "2-1", "late"])] == ["2-0", "2-1", "late"]
    await ledger.close()
    await other.close()


async def test_a_parent_is_not_removed_while_another_server_writes_its_child(shared: Home) -> None:
    writes, removes = await shared.open_ledger(), await shared.open_ledger(removes=True)
    for n in range(60):
        parent, child = f"p{n}", f"c{n}"
        await writes.writer.append([sample(parent)])
        made = sample(child, (1, 2, 3, 4), parent_id=parent, shared=3)
        _, gone = await asyncio.gather(writes.writer.append([made]), removes.remove([parent]))
        records, damaged, removed = await removes.readable([parent, child])
        assert list(records[child].prompt_ids) == [1, 2, 3, 4] and not damaged
        assert (parent in removed) == bool(gone) == (records[child].shared == 0)
    await writes.close()
    await removes.close()


async def test_no_error_and_no_text_of_an_address_shows_its_password(postgres: PrivatePostgres) -> None:
    right = parse_address(postgres.create_database())
    assert PASSWORD not in repr(right) and PASSWORD not in right.shown and "art@127.0.0.1" in right.shown
    for wrong in (
        right.url.replace(PASSWORD, "open-barley"),
        right.url.replace(f":{postgres.port}/", ":1/"),
        right.url + "?sslmode=nonsense",
        right.url.replace("postgresql", "mysql"),
        "postgresql://art:open-barley@[bad",
        "postgresql://art:open-barley@127.0.0.1:port/art",
    ):
        with pytest.raises((DatabaseError, ConfigurationError)) as refused:
            await PostgresDatabase.open(parse_address(wrong))
        error: BaseException | None = refused.value
        while error is not None:
            assert PASSWORD not in str(error) and "open-barley" not in str(error), type(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


async def test_tables_of_another_version_are_refused(shared: Home) -> None:
    await (await shared.open_ledger()).close()
    shared.sql("UPDATE versions SET version = 99 WHERE part = 'samples'")
    with pytest.raises(ARTError, match="have version 99, this ART knows 1"):
        await shared.open_ledger()

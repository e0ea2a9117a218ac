"""The ledger in Postgres, which several servers write to.

Samples lie in a table with a partition for each day, made when the day's first sample is written, and dropped
when the retention has removed its last one. What is appended while a commit is under way goes into the next
one together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from art.errors import ARTError
from art.server.ledger.face import FoundSamples, LedgerError, LedgerSize, OldSample, SampleLedger
from art.server.ledger.schema import COLUMNS, REMOVE_IMAGES, LedgerRow, SampleRecord, Statement, to_row
from art.server.tenancy import Tenant
from art_extensions.postgres.database import CommitLane, Connection, DatabaseError, PostgresDatabase, numbered

_log = logging.getLogger(__name__)

_VERSION = 1
DAY_SECONDS = 86_400
_MOST_TOGETHER = 192
"""Samples of one commit: those who wait for it all go on in the same turn of the event loop."""
_CLOSE_SECONDS = 30.0
_LOCK_MILLISECONDS = 2000
_PARTITIONS = 7_273_002
"""The advisory lock of whoever makes or drops a partition."""

_CREATE = """
CREATE SEQUENCE samples_rowid;
CREATE TABLE samples (
    rowid BIGINT NOT NULL DEFAULT nextval('samples_rowid'),
    sample_id TEXT NOT NULL,
    rollout_id TEXT,
    project TEXT,
    model TEXT NOT NULL,
    base_model TEXT NOT NULL,
    step INTEGER,
    adapter TEXT COLLATE "C",
    parent_id TEXT,
    fork_reason TEXT,
    shared INTEGER NOT NULL,
    prompt BYTEA NOT NULL,
    completion BYTEA NOT NULL,
    logprobs BYTEA NOT NULL,
    sampling BYTEA NOT NULL,
    finish_reason TEXT NOT NULL,
    turn_key BYTEA NOT NULL,
    tools_key BYTEA NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    tenant TEXT,
    candidates BYTEA,
    checksum BIGINT,
    UNIQUE (sample_id, created_at)
) PARTITION BY RANGE (created_at);
ALTER TABLE samples ALTER prompt SET STORAGE EXTERNAL, ALTER completion SET STORAGE EXTERNAL,
    ALTER logprobs SET STORAGE EXTERNAL;
CREATE INDEX samples_by_row ON samples (rowid);
CREATE INDEX samples_by_rollout ON samples (rollout_id, rowid) WHERE rollout_id IS NOT NULL;
CREATE INDEX samples_by_turn ON samples (turn_key, rowid);
CREATE INDEX samples_by_adapter ON samples (adapter, rowid) WHERE adapter IS NOT NULL;
CREATE INDEX samples_by_parent ON samples (parent_id) WHERE shared > 0;
CREATE TABLE removed (sample_id TEXT PRIMARY KEY, tenant TEXT);
CREATE TABLE removals (number BIGINT NOT NULL);
INSERT INTO removals VALUES (0);
CREATE TABLE rollouts (
    tenant TEXT NOT NULL,
    rollout_id TEXT NOT NULL,
    scope BYTEA NOT NULL,
    opened_at DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    closed_at DOUBLE PRECISION,
    PRIMARY KEY (tenant, rollout_id)
);
CREATE TABLE exchanges (
    rowid BIGINT GENERATED ALWAYS AS IDENTITY,
    sample_id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    rollout_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    extends TEXT,
    shared INTEGER NOT NULL,
    size INTEGER NOT NULL,
    said BYTEA NOT NULL
);
CREATE INDEX exchanges_by_rollout ON exchanges (tenant, rollout_id);
CREATE TABLE delivered (
    tenant TEXT NOT NULL,
    rollout_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    PRIMARY KEY (tenant, rollout_id, request_id)
);
CREATE TABLE images (
    name TEXT PRIMARY KEY,
    used_at DOUBLE PRECISION NOT NULL,
    file BYTEA NOT NULL
);
"""
"""The tables, as SQLite's (`art.server.ledger.schema`), whose statements run here, too: `rowid` is a column.
Ids and logprobs are not compressed: that took a third of the database's time, for little."""

_MARKS = ", ".join(f"${place + 1}" for place in range(len(COLUMNS.split(","))))
_INSERT = f"INSERT INTO samples ({COLUMNS}) VALUES ({_MARKS})"
_OLD_SAMPLES = """
SELECT old.rowid, old.sample_id, old.rollout_id IS NOT NULL AND (
    EXISTS (SELECT 1 FROM samples AS later WHERE later.rollout_id = old.rollout_id
            AND later.tenant IS NOT DISTINCT FROM old.tenant
            AND later.project IS NOT DISTINCT FROM old.project AND later.step >= $2)
    OR EXISTS (SELECT 1 FROM rollouts WHERE rollouts.tenant = coalesce(old.tenant, '')
               AND rollouts.rollout_id = old.rollout_id AND closed_at IS NULL AND expires_at > $4))
FROM samples AS old WHERE old.adapter = $1 AND ($3::bigint IS NULL OR old.rowid < $3)
ORDER BY old.rowid DESC LIMIT $5
"""
_TURNS = """
SELECT newest.sample_id, own.sample_id FROM unnest($1::bytea[]) WITH ORDINALITY AS turns (key, place)
CROSS JOIN LATERAL (
    SELECT sample_id FROM samples WHERE turn_key = turns.key ORDER BY rowid DESC LIMIT 1) AS newest
LEFT JOIN LATERAL (
    SELECT sample_id FROM samples WHERE turn_key = turns.key AND rollout_id = $2
    ORDER BY rowid DESC LIMIT 1) AS own ON true
ORDER BY turns.place
"""
_EARLIER_DAYS = """
SELECT relid::regclass::text FROM pg_partition_tree('samples') WHERE isleaf
AND relid::regclass::text <> $1 AND relid <> 'samples'::regclass
"""
_STORED = """
SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM pg_partition_tree('samples')
"""


class _Waiting:
    """The records of one writer, who waits for `committed`, unless nobody does."""

    __slots__ = ("also", "committed", "records")

    def __init__(
        self,
        records: Sequence[SampleRecord],
        also: Sequence[Statement],
        committed: asyncio.Future[None] | None,
    ) -> None:
        self.records, self.also, self.committed = records, also, committed


class PostgresWriter:
    """Writes samples, and what goes with them. One event loop owns it."""

    def __init__(self, lane: CommitLane, name: str) -> None:
        self._lane, self._name = lane, name
        self._days = set[int]()
        """Days that have a partition."""
        self._waiting: list[_Waiting] = []
        self._news = asyncio.Event()
        self._closed = False
        self._task = asyncio.create_task(self._write_batches(), name="ledger-write")

    async def append(self, records: Sequence[SampleRecord], also: Sequence[Statement] = ()) -> None:
        """Return once the records are committed, and with them what `also` writes. Raises: LedgerError."""
        if self._closed:
            raise LedgerError(f"the ledger {self._name} is closed")
        committed = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(records, also, committed))
        self._news.set()
        await committed

    def note(self, also: Sequence[Statement]) -> None:
        """Hand over what nobody waits for: committed before anything that is appended later.

        What cannot be written is told by the log; a closed ledger takes nothing.
        """
        if not self._closed:
            self._waiting.append(_Waiting((), also, None))
            self._news.set()

    async def close(self) -> None:
        """Commit what waits, within a deadline."""
        self._closed = True
        self._news.set()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._task
        except TimeoutError:
            _log.error("what waited for the ledger %s was not committed: it does not answer", self._name)

    async def _write_batches(self) -> None:
        while not (self._closed and not self._waiting):
            await self._news.wait()
            self._news.clear()
            while batch := self._take_batch():
                error: ARTError | None = None
                try:
                    await self._write(batch)
                except (ARTError, TypeError, ValueError, OverflowError) as problem:
                    number = sum(len(one.records) for one in batch)
                    error = LedgerError(f"cannot write {number} samples to {self._name}: {problem}")
                _finish_batch(batch, error)

    def _take_batch(self) -> list[_Waiting]:
        number, records = 0, 0
        for one in self._waiting:
            records += len(one.records)
            if number and records > _MOST_TOGETHER:
                break
            number += 1
        batch, self._waiting = self._waiting[:number], self._waiting[number:]
        return batch

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        records = [record for one in batch for record in one.records]
        days = {_day_of(record.created_at) for record in records}
        also = [statement for one in batch for statement in one.also]

        async def work(connection: Connection) -> None:
            if records:
                rows = [to_row(record) for record in await _with_parents(connection, records)]
                await connection.executemany(_INSERT, rows)
            for text, values in also:
                await connection.execute(numbered(text), *values)

        await self._make_days(days - self._days)
        try:
            await self._lane.commit(work)
        except DatabaseError as error:
            if not _is_without_partition(error):
                raise
            # Another server's retention dropped the day meanwhile.
            await self._make_days(days)
            await self._lane.commit(work)

    async def _make_days(self, days: set[int]) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _PARTITIONS)
            for day in sorted(days):
                start = float(day * DAY_SECONDS)
                await connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {partition_of(day)} PARTITION OF samples "
                    f"FOR VALUES FROM ({start}) TO ({start + DAY_SECONDS})"
                )

        if days:
            await self._lane.commit(work)
            self._days |= days


def _day_of(created_at: float) -> int:
    return int(created_at // DAY_SECONDS)


def partition_of(day: int) -> str:
    """Returns the name of a day's partition. day: counted from 1970-01-01, in UTC."""
    return f"samples_day_{day}"


def _is_without_partition(error: DatabaseError) -> bool:
    import asyncpg

    cause = error.__cause__
    return isinstance(cause, asyncpg.CheckViolationError) and "no partition" in str(cause)


async def _with_parents(connection: Connection, records: Sequence[SampleRecord]) -> list[SampleRecord]:
    """The records; one whose parent was removed after its prompt was made keeps all of its ids itself.

    Parents that are there cannot be removed before the records are committed.
    """
    here = {record.sample_id for record in records}
    wanted = sorted({str(one.parent_id) for one in records if one.shared and one.parent_id not in here})
    if not wanted:
        return list(records)
    query = "SELECT sample_id FROM samples WHERE sample_id = ANY($1) ORDER BY sample_id FOR KEY SHARE"
    there = {row[0] for row in await connection.fetch(query, wanted)} | here
    return [one if not one.shared or one.parent_id in there else replace(one, shared=0) for one in records]


def _finish_batch(batch: Sequence[_Waiting], error: ARTError | None) -> None:
    for one in batch:
        if one.committed is None:
            if error is not None:
                _log.error("%s", error)
        elif not one.committed.done():
            if error is None:
                one.committed.set_result(None)
            else:
                one.committed.set_exception(error)


class PostgresLedger(SampleLedger):
    """Samples in Postgres. `open` it; one event loop owns it."""

    def __init__(self, database: PostgresDatabase, data_dir: Path) -> None:
        self._database, self.data_dir = database, data_dir
        self.name, self.shared = database.address.shown, True
        self._removing = database.lane()
        self._lane = database.lane()
        self.writer: PostgresWriter = PostgresWriter(self._lane, self.name)
        self._closed = False

    @classmethod
    async def open(cls, database: PostgresDatabase, data_dir: Path) -> PostgresLedger:
        """The ledger of a database, which stays open when the ledger is closed.

        Raises: ConfigurationError when another version of ART wrote it, DatabaseError.
        """
        await database.prepare_tables("samples", _VERSION, _CREATE)
        return cls(database, data_dir)

    async def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows of a query of the tables beside the samples. Raises: LedgerError."""
        return await self._read(numbered(query), *values)

    async def find(self, sample_ids: Sequence[str]) -> FoundSamples:
        """Returns the wanted records and, on the way, every record that they share ids with."""
        found, rows = FoundSamples(), dict[str, LedgerRow]()
        wanted = list(dict.fromkeys(sample_ids))
        while wanted:
            parents: dict[str, None] = {}
            for row in await self._read(f"SELECT {COLUMNS} FROM samples WHERE sample_id = ANY($1)", wanted):
                if (parent := found.add_row(row, rows)) is not None:
                    parents[parent] = None
            wanted = [parent for parent in parents if parent not in rows]
        found.read_rows(rows)
        return found

    async def removed(self, sample_ids: Sequence[str], tenant: Tenant) -> frozenset[str]:
        """Returns those that the retention removed and that this tenant may know of."""
        query = "SELECT sample_id, tenant FROM removed WHERE sample_id = ANY($1)"
        rows = await self._read(query, list(sample_ids))
        return frozenset(name for name, owner in rows if tenant in (None, owner))

    async def rollout_ids(self, rollout_id: str, tenant: Tenant) -> list[str]:
        """Returns the ids of a rollout's samples in the order of their creation."""
        query = "SELECT sample_id FROM samples WHERE rollout_id = $1 AND $2 IN (tenant, '') ORDER BY rowid"
        return [row[0] for row in await self._read(query, rollout_id, tenant or "")]

    async def find_turn(self, turn_keys: Sequence[bytes], rollout_id: str | None) -> SampleRecord | None:
        """The newest sample that ended with the first known of these turns; one of the rollout first."""
        for newest, own in await self._read(_TURNS, list(turn_keys), rollout_id):
            for sample_id in (own, newest):
                found = sample_id and (await self.find([sample_id])).records.get(sample_id)
                if found:  # a damaged one is continued by rendering its text
                    return found
        return None

    async def is_empty(self) -> bool:
        """Returns whether no sample was ever written."""
        return not await self._read("SELECT 1 FROM samples LIMIT 1")

    async def size(self) -> LedgerSize:
        """Returns how much there is, at the cost of a few pages; `free` is Postgres's own business: 0."""
        ((newest,),) = await self._read("SELECT max(rowid) FROM samples")
        ((removed,),) = await self._read("SELECT sum(number)::bigint FROM removals")
        ((stored,),) = await self._read(_STORED)
        return LedgerSize(samples=(newest or 0) - removed, stored=stored, free=0, removed=removed)

    async def adapters(self, model: str) -> dict[str, int]:
        """Returns the adapters of a model that samples were drawn with, and the row of the newest of each."""
        found, last, end = dict[str, int](), f"{model}@", f"{model}A"
        next_one = "SELECT min(adapter) FROM samples WHERE adapter > $1 AND adapter < $2"
        newest = "SELECT max(rowid) FROM samples WHERE adapter = $1"
        while (last := (await self._read(next_one, last, end))[0][0]) is not None:
            ((found[last],),) = await self._read(newest, last)
        return found

    async def old_samples(
        self, adapter: str, *, since: int, below: int | None, now: float, most: int
    ) -> list[OldSample]:
        """Returns the newest samples of an adapter, at most so many, newest first.

        since: a rollout with a sample of this step or a later one goes on. below: of rows before this one.
        """
        rows = await self._read(_OLD_SAMPLES, adapter, since, below, now, most)
        return [OldSample(row=row, sample_id=name, in_use=bool(used)) for row, name, used in rows]

    async def remove(self, sample_ids: Sequence[str]) -> int:
        """Returns how many of these samples were removed: those that no other sample shares ids with.

        It is all done or nothing, whenever the process is killed. Raises: LedgerError.
        """

        async def work(connection: Connection) -> int:
            return await _remove(connection, sorted(set(sample_ids)))

        try:
            gone = await self._removing.commit(work)
        except DatabaseError as error:
            raise LedgerError(f"cannot remove samples: {error}") from error
        if gone:
            try:
                await self._removing.commit(_drop_empty_days)
            except DatabaseError as error:
                _log.warning("partitions without samples stay until a later removal: %s", error)
        return gone

    async def has_rollout(self, rollout_id: str, *, tenant: Tenant = None) -> bool:
        """Returns whether the asker's rollout of this id has a sample."""
        query = "SELECT 1 FROM samples WHERE rollout_id = $1 AND tenant IS NOT DISTINCT FROM $2 LIMIT 1"
        return bool(await self._read(query, rollout_id, tenant))

    async def close(self) -> None:
        """Commit what waits, then close. Calling it twice is allowed."""
        if self._closed:
            return
        self._closed = True
        await self.writer.close()
        await self._lane.close()
        await self._removing.close()

    async def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return await self._database.rows(query, *values)
        except DatabaseError as error:
            raise LedgerError(f"cannot read the ledger: {error}") from error


async def _remove(connection: Connection, sample_ids: list[str]) -> int:
    # Locked first, so that whoever is about to share their ids is seen by the next query, or sees them go.
    locked = "SELECT 1 FROM samples WHERE sample_id = ANY($1) ORDER BY sample_id FOR UPDATE"
    await connection.fetch(locked, sample_ids)
    query = "SELECT parent_id, sample_id FROM samples WHERE shared > 0 AND parent_id = ANY($1)"
    doomed, sharing = set(sample_ids), dict[str, list[str]]()
    for parent, child in await connection.fetch(query, sample_ids):
        sharing.setdefault(parent, []).append(child)
    while needed := {name for name in doomed if not doomed.issuperset(sharing.get(name, ()))}:
        doomed -= needed
    chosen = "SELECT sample_id, tenant FROM samples WHERE sample_id = ANY($1)"
    await connection.execute(f"INSERT INTO removed {chosen} ON CONFLICT DO NOTHING", sorted(doomed))
    deleted = await connection.execute("DELETE FROM samples WHERE sample_id = ANY($1)", sorted(doomed))
    gone = int(deleted.rpartition(" ")[2])
    await connection.execute("UPDATE removals SET number = number + $1", gone)
    await connection.execute(REMOVE_IMAGES)
    return gone


async def _drop_empty_days(connection: Connection) -> list[str]:
    """Drops partitions of earlier days that are empty: that gives their space back at once."""
    today = _day_of(time.time())
    names = [row[0] for row in await connection.fetch(_EARLIER_DAYS, partition_of(today))]
    empty = [name for name in names if await _is_empty(connection, name)]
    if empty:
        # Who writes goes on within this time; a table that a backup reads is dropped another time.
        await connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS}")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _PARTITIONS)
        await connection.execute("LOCK TABLE samples IN ACCESS EXCLUSIVE MODE")
        empty = [name for name in empty if await _is_empty(connection, name)]
        for name in empty:
            await connection.execute(f"DROP TABLE {name}")
    return empty


async def _is_empty(connection: Connection, table: str) -> bool:
    return await connection.fetchval(f"SELECT 1 FROM {table} LIMIT 1") is None

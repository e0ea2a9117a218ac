"""The ledger in the data folder writes every completion down once, before its reply leaves the server.

Records wait a few milliseconds for company and are committed together, by a thread of their own
(`LedgerWriter`). SQLite's write-ahead log keeps what is committed when the process is killed at any moment (a
power cut may take the last moments).

Samples are removed by `Ledger.remove` alone, in the writer's thread, and only together with every sample that
begins with their ids; what was removed is known by its id, and a reply that continues one is written whole.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from art.errors import ARTError, ConfigurationError
from art.process.files import create_private, disk_error, disk_trouble
from art.server.ledger.face import FoundSamples, LedgerError, LedgerSize, OldSample, SampleLedger
from art.server.ledger.schema import (
    COLUMNS,
    CREATE,
    INSERT,
    MIGRATE,
    REMOVE_IMAGES,
    REMOVED,
    RETENTION_INDEXES,
    SCHEMA_VERSION,
    LedgerRow,
    SampleRecord,
    Statement,
    to_row,
)
from art.server.tenancy import Tenant

_log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.002
_COMMITTED_TOGETHER = 48
"""Those who wait for one commit all go on in the same turn of the event loop: it must be short."""


class _Batch:
    """Records that are committed together, and their writers, who wait."""

    __slots__ = ("also", "records", "waiting")

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.records: list[SampleRecord] = []
        self.also: list[Statement] = []


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of rows that are there, made in one transaction, and who waits for its number."""

    work: Callable[[sqlite3.Connection], int]
    done: Future[int]

    def make(self, connection: sqlite3.Connection) -> None:
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            with connection:
                number = self.work(connection)
        except sqlite3.Error as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(number)


class LedgerWriter:
    """Writes samples, and what goes with them. One event loop owns it."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, removes: bool = False) -> None:
        """removes: samples may be removed while it writes, those too whose ids a later one shares."""
        self._connection, self._path, self._removes = connection, path, removes
        self._batches: queue.SimpleQueue[tuple[_Batch, asyncio.AbstractEventLoop] | _Change | None] = (
            queue.SimpleQueue()
        )
        self._pending: _Batch | None = None
        self._busy = False
        self._closed = False
        self._writer = threading.Thread(target=self._write_batches, name="ledger-write", daemon=True)
        self._writer.start()

    async def append(self, records: Sequence[SampleRecord], also: Sequence[Statement] = ()) -> None:
        """Return once the records are committed, and with them what `also` writes. Raises: LedgerError."""
        if self._closed:
            raise LedgerError(f"the ledger {self._path} is closed")
        # Of each writer its own: one that is cancelled must not cancel the others' commit.
        committed = asyncio.get_running_loop().create_future()
        self._gather(records, also, committed)
        await committed

    def note(self, also: Sequence[Statement]) -> None:
        """Hand over what nobody waits for: committed before anything that is appended later.

        What cannot be written is told by the log; a closed ledger takes nothing.
        """
        if not self._closed:
            self._gather((), also)

    async def change(self, work: Callable[[sqlite3.Connection], int]) -> int:
        """Returns what `work` returns: it runs between two commits, as one transaction.

        Raises: LedgerError, DiskError.
        """
        if self._closed:
            raise LedgerError(f"the ledger {self._path} is closed")
        done: Future[int] = Future()
        self._batches.put(_Change(work, done))
        try:
            return await asyncio.wrap_future(done)
        except sqlite3.Error as error:
            raise _ledger_error(error, "cannot remove samples", self._path) from error

    async def close(self, *, seconds: float) -> None:
        """Commit what waits, for so long."""
        self._closed = True
        if self._pending is not None:
            self._flush(self._pending, asyncio.get_running_loop())
        self._batches.put(None)
        await asyncio.to_thread(self._writer.join, seconds)

    def _gather(
        self,
        records: Sequence[SampleRecord],
        also: Sequence[Statement],
        committed: asyncio.Future[None] | None = None,
    ) -> None:
        batch, loop = self._pending, asyncio.get_running_loop()
        if batch is None:
            batch = self._pending = _Batch()
            # Under load waiting saves commits; a lone writer is not kept waiting.
            if self._busy:
                loop.call_later(_GATHER_SECONDS, self._flush, batch, loop)
            else:
                loop.call_soon(self._flush, batch, loop)
        batch.records.extend(records)
        batch.also.extend(also)
        if committed is not None:
            batch.waiting.append(committed)
        if len(batch.records) >= _COMMITTED_TOGETHER:
            self._flush(batch, loop)

    def _flush(self, batch: _Batch, loop: asyncio.AbstractEventLoop) -> None:
        if self._pending is batch:
            self._pending = None
            # Notes come after their samples: they do not tell how many writers there are.
            self._busy = len(batch.records) > 1 or (self._busy and not batch.records)
            self._batches.put((batch, loop))

    def _write_batches(self) -> None:
        while (item := self._batches.get()) is not None:
            if isinstance(item, _Change):
                item.make(self._connection)
                continue
            batch, loop = item
            error: Exception | None = None
            try:
                with self._connection:
                    records = self._readable(batch.records) if self._removes else batch.records
                    self._connection.executemany(INSERT, map(to_row, records))
                    for text, values in batch.also:
                        self._connection.execute(text, values)
            except (sqlite3.Error, TypeError, ValueError, OverflowError) as problem:
                error = _ledger_error(problem, f"cannot write {len(batch.records)} samples", self._path)
            try:
                loop.call_soon_threadsafe(_finish_batch, batch, error)
            except RuntimeError:
                # The loop ended meanwhile: nobody waits for the answer.
                continue

    def _readable(self, records: Sequence[SampleRecord]) -> Iterator[SampleRecord]:
        """The records; one whose parent was removed after its prompt was made keeps all of its ids itself."""
        here = {record.sample_id for record in records}
        for record in records:
            there = not record.shared or record.parent_id in here
            query = "SELECT 1 FROM samples WHERE sample_id = ?"
            if there or self._connection.execute(query, (record.parent_id,)).fetchone():
                yield record
            else:
                yield replace(record, shared=0)


def _ledger_error(problem: Exception, what: str, path: Path) -> ARTError:
    if disk_trouble(problem, path):
        return disk_error(problem, path, what)
    return LedgerError(f"{what} to {path}: {problem}")


def _finish_batch(batch: _Batch, error: Exception | None) -> None:
    if error is not None and not batch.waiting:
        _log.error("%s", error)
    for committed in batch.waiting:
        if committed.done():
            continue
        if error is None:
            committed.set_result(None)
        else:
            committed.set_exception(error)


T = TypeVar("T")

_BUSY_SECONDS = 30.0
_VARIABLES = 500
"""Ids in one SELECT ... IN (...)."""


class Ledger(SampleLedger):
    """Samples on disk. One event loop owns it."""

    def __init__(self, path: Path, *, removes: bool = False) -> None:
        """Open or create the file. removes: samples may be removed from it.

        Raises: ConfigurationError when another version of ART wrote it or it is damaged, DiskError.
        """
        self.path, self.data_dir = path, path.parent.parent
        self.name, self.shared = str(path), False
        self._writing, self._reading = _open(path, removes=removes)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="ledger-read")
        self.writer: LedgerWriter = LedgerWriter(self._writing, path, removes=removes)
        self._closed = False

    async def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows of a query of the tables beside the samples. Raises: LedgerError."""
        return await self._read(lambda: self._reading.execute(query, values).fetchall())

    async def find(self, sample_ids: Sequence[str]) -> FoundSamples:
        """Returns the wanted records and, on the way, every record that they share ids with."""
        return await self._read(lambda: _load(self._reading, sample_ids))

    async def removed(self, sample_ids: Sequence[str], tenant: Tenant) -> frozenset[str]:
        """Returns those that the retention removed and that this tenant may know of."""
        return await self._read(lambda: _removed(self._reading, sample_ids, tenant))

    async def rollout_ids(self, rollout_id: str, tenant: Tenant) -> list[str]:
        """Returns the ids of a rollout's samples in the order of their creation."""
        query = "SELECT sample_id FROM samples WHERE rollout_id = ?1 AND ?2 IN (tenant, '') ORDER BY rowid"
        values = (rollout_id, tenant or "")
        return await self._read(lambda: [row[0] for row in self._reading.execute(query, values)])

    async def find_turn(self, turn_keys: Sequence[bytes], rollout_id: str | None) -> SampleRecord | None:
        """The newest sample that ended with the first known of these turns; one of the rollout first."""
        query = "SELECT MAX(rowid), sample_id FROM samples WHERE turn_key = ?"

        def read() -> SampleRecord | None:
            for key in turn_keys:
                tries: list[tuple[str, tuple[Any, ...]]] = [(query, (key,))]
                if rollout_id is not None:
                    tries.insert(0, (query + " AND rollout_id = ?", (key, rollout_id)))
                for text, values in tries:
                    sample_id = self._reading.execute(text, values).fetchone()[1]
                    if sample_id is not None:
                        found = _load(self._reading, [sample_id]).records.get(sample_id)
                        if found is not None:  # a damaged one is continued by rendering its text
                            return found
            return None

        return await self._read(read)

    async def is_empty(self) -> bool:
        """Returns whether no sample was ever written."""
        query = "SELECT 1 FROM samples LIMIT 1"
        return await self._read(lambda: self._reading.execute(query).fetchone() is None)

    async def size(self) -> LedgerSize:
        """Returns how much there is, at the cost of a few pages."""

        def read() -> LedgerSize:
            # The newest row's number, not a count: that would read the whole index.
            (newest,) = self._reading.execute("SELECT MAX(rowid) FROM samples").fetchone()
            (removed,) = self._reading.execute("SELECT TOTAL(number) FROM removals").fetchone()
            (pages,) = self._reading.execute("PRAGMA freelist_count").fetchone()
            (page,) = self._reading.execute("PRAGMA page_size").fetchone()
            files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
            return LedgerSize(
                samples=(newest or 0) - int(removed),
                stored=sum(file.stat().st_size for file in files if file.exists()),
                free=pages * page,
                removed=int(removed),
            )

        return await self._read(read)

    async def adapters(self, model: str) -> dict[str, int]:
        """Returns the adapters of a model that samples were drawn with, and the row of the newest of each.
        Wants the retention's indexes.
        """
        after, end = f"{model}@", f"{model}A"
        next_one = "SELECT MIN(adapter) FROM samples WHERE adapter > ? AND adapter < ?"
        newest = "SELECT MAX(rowid) FROM samples WHERE adapter = ?"

        def read() -> dict[str, int]:
            found, last = dict[str, int](), after
            while (last := self._reading.execute(next_one, (last, end)).fetchone()[0]) is not None:
                (found[last],) = self._reading.execute(newest, (last,)).fetchone()
            return found

        return await self._read(read)

    async def old_samples(
        self, adapter: str, *, since: int, below: int | None, now: float, most: int
    ) -> list[OldSample]:
        """Returns the newest samples of an adapter, at most so many, newest first.

        since: a rollout with a sample of this step or a later one goes on. below: of rows before this one.
        """
        values = {"adapter": adapter, "since": since, "below": below, "now": now, "most": most}
        rows = await self._read(lambda: self._reading.execute(_OLD_SAMPLES, values).fetchall())
        return [OldSample(row=row, sample_id=name, in_use=bool(used)) for row, name, used in rows]

    async def remove(self, sample_ids: Sequence[str]) -> int:
        """Returns how many of these samples were removed: those that no other sample shares ids with.

        It is all done or nothing, whenever the process is killed. Raises: LedgerError, DiskError.
        """
        return await self.writer.change(lambda writing: _remove(writing, sample_ids))

    async def has_rollout(self, rollout_id: str, *, tenant: Tenant = None) -> bool:
        """Returns whether the asker's rollout of this id has a sample."""
        query = "SELECT 1 FROM samples WHERE rollout_id = ? AND tenant IS ? LIMIT 1"
        values = (rollout_id, tenant)
        return await self._read(lambda: self._reading.execute(query, values).fetchone() is not None)

    async def _read(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, work)
        except sqlite3.Error as error:
            if disk_trouble(error, self.path):
                raise disk_error(error, self.path, "a sample cannot be read") from error
            raise LedgerError(f"cannot read {self.path}: {error}") from error

    async def close(self) -> None:
        """Commit what waits, then close. Calling it twice is allowed."""
        if self._closed:
            return
        self._closed = True
        await self.writer.close(seconds=_BUSY_SECONDS)
        self._reader.shutdown(wait=True)
        self._reading.close()
        self._writing.close()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)


def _open(path: Path, *, removes: bool) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """A connection that writes and one that reads. Raises: ConfigurationError, DiskError."""
    try:
        create_private(path)
        writing = _connect(path)
        _prepare(writing, path)
        writing.executescript(REMOVED + (RETENTION_INDEXES if removes else ""))
        reading = _connect(path)
        reading.execute("PRAGMA query_only = ON")
    except (sqlite3.DatabaseError, OSError) as error:
        if isinstance(error, OSError) or disk_trouble(error, path):
            raise disk_error(error, path, "the ledger cannot be opened") from error
        raise ConfigurationError(
            f"{path} is not a ledger or is damaged ({error}). It holds every sample: keep a copy of it and "
            f"of {path.name}-wal beside it, then restore a backup, or rescue what can be read with sqlite3's "
            ".recover; or use another data folder"
        ) from error
    return writing, reading


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        # One transaction: a kill in the middle leaves an empty file, not half a table.
        connection.executescript(f"BEGIN; {CREATE} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    while version in MIGRATE:
        connection.executescript(f"BEGIN; {MIGRATE[version]} PRAGMA user_version = {version + 1}; COMMIT;")
        version += 1
    if version not in (0, SCHEMA_VERSION):
        raise ConfigurationError(
            f"the ledger {path} has version {version}, this ART knows {SCHEMA_VERSION}: use the ART that "
            "wrote it, or another data folder"
        )


def _load(connection: sqlite3.Connection, sample_ids: Sequence[str]) -> FoundSamples:
    """The wanted records and, on the way, every record that they share ids with."""
    found = FoundSamples()
    rows: dict[str, LedgerRow] = {}
    wanted = list(dict.fromkeys(sample_ids))
    while wanted:
        parents: dict[str, None] = {}
        for part in _parts(wanted):
            for row in connection.execute(
                f"SELECT {COLUMNS} FROM samples WHERE sample_id IN ({_marks(part)})", part
            ):
                if (parent := found.add_row(row, rows)) is not None:
                    parents[parent] = None
        wanted = [parent for parent in parents if parent not in rows]
    found.read_rows(rows)
    return found


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that leaves no file beside a database that nobody has open. Raises sqlite3.Error."""
    in_use = path.with_name(f"{path.name}-wal").exists()
    options = "mode=ro" if in_use else "mode=ro&immutable=1"
    return sqlite3.connect(f"{path.resolve().as_uri()}?{options}", uri=True)


def read_samples(path: Path, sample_ids: Sequence[str]) -> dict[str, SampleRecord]:
    """Returns the readable samples among these, of a ledger that is opened read-only and may be in use.

    Raises: LedgerError.
    """
    try:
        with closing(open_read_only(path)) as connection:
            return _load(connection, sample_ids).records
    except sqlite3.DatabaseError as error:
        raise LedgerError(f"cannot read {path}: {error}") from error


_OLD_SAMPLES = """
SELECT old.rowid, old.sample_id, old.rollout_id IS NOT NULL AND (
    EXISTS (SELECT 1 FROM samples AS later WHERE later.rollout_id = old.rollout_id
            AND later.tenant IS old.tenant AND later.project IS old.project AND later.step >= :since)
    OR EXISTS (SELECT 1 FROM rollouts WHERE rollouts.tenant = coalesce(old.tenant, '')
               AND rollouts.rollout_id = old.rollout_id AND closed_at IS NULL AND expires_at > :now))
FROM samples AS old WHERE old.adapter = :adapter AND (:below IS NULL OR old.rowid < :below)
ORDER BY old.rowid DESC LIMIT :most
"""


def _removed(connection: sqlite3.Connection, sample_ids: Sequence[str], tenant: Tenant) -> frozenset[str]:
    found: set[str] = set()
    for part in _parts(sample_ids):
        query = f"SELECT sample_id, tenant FROM removed WHERE sample_id IN ({_marks(part)})"
        found.update(name for name, owner in connection.execute(query, part) if tenant in (None, owner))
    return frozenset(found)


def _remove(connection: sqlite3.Connection, sample_ids: Sequence[str]) -> int:
    doomed, sharing = set(sample_ids), dict[str, list[str]]()
    for part in _parts(sample_ids):
        query = f"SELECT parent_id, sample_id FROM samples WHERE shared > 0 AND parent_id IN ({_marks(part)})"
        for parent, child in connection.execute(query, part):
            sharing.setdefault(parent, []).append(child)
    while needed := {name for name in doomed if not doomed.issuperset(sharing.get(name, ()))}:
        doomed -= needed
    gone = 0
    for part in _parts(sorted(doomed)):
        marks = _marks(part)
        chosen = f"SELECT sample_id, tenant FROM samples WHERE sample_id IN ({marks})"
        connection.execute(f"INSERT OR IGNORE INTO removed {chosen}", part)
        gone += connection.execute(f"DELETE FROM samples WHERE sample_id IN ({marks})", part).rowcount
    connection.execute("INSERT INTO removals SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM removals)")
    connection.execute("UPDATE removals SET number = number + ?", (gone,))
    connection.execute(REMOVE_IMAGES)
    return gone


def _parts(values: Sequence[T]) -> list[Sequence[T]]:
    return [values[start : start + _VARIABLES] for start in range(0, len(values), _VARIABLES)]


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))

"""The table of training jobs in SQLite, and the queue that says whose job is next.

SQLite in WAL mode; one thread owns the connection. What is committed survives the death of the process; the
commit that survives a power cut, too, is the checkpoint's (`checkpoints.py`), and a job is completed from
there.

Tenants take turns, and within a tenant its models; a model's jobs keep their order. Worked example, where
`a~p/x` has asked for three jobs before the others came:

    asked     a~p/x 1, a~p/x 2, a~p/x 3, a~p/y 1, b~p/z 1
    taken     a~p/x 1, b~p/z 1, a~p/y 1, a~p/x 2, a~p/x 3
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from art.errors import ConfigurationError
from art.process.fair_queue import FairQueue
from art.process.files import create_private, disk_error, disk_trouble
from art.server.jobs.job_table import (
    BULK,
    KEPT_REQUEST,
    LISTED,
    EndedJob,
    JobStoreError,
    JobTable,
    NewJob,
    QueuedJob,
)
from art.server.tenancy import tenant_of
from art.wire.jobs import JobEvent


class JobQueue:
    """The waiting jobs of one trainer."""

    def __init__(self) -> None:
        self._tenants: FairQueue[str] = FairQueue()
        """A tenant's name for each of its jobs."""
        self._jobs: dict[str, FairQueue[QueuedJob]] = {}
        """The queues of jobs by tenant; the owners within a queue are the tenant's models."""
        self._changed = asyncio.Event()

    def put(self, ticket: QueuedJob) -> None:
        """Adds a job behind the other jobs of its model."""
        tenant = str(tenant_of(ticket.project))
        self._jobs.setdefault(tenant, FairQueue()).put(ticket.model, ticket)
        self._tenants.put(tenant, tenant)
        self._changed.set()

    async def take_next(self) -> QueuedJob:
        """The next job; waits for one (until cancelled, when the server ends)."""
        while not self._tenants:
            self._changed.clear()
            await self._changed.wait()
        tenant = self._tenants.take_next()
        jobs = self._jobs[tenant]
        ticket = jobs.take_next()
        if not jobs:
            del self._jobs[tenant]
        return ticket


T = TypeVar("T")
_BULK_PATHS = ", ".join(f"'$.{name}'" for name in BULK)
_SETTINGS = f"CASE WHEN json_valid(request) THEN json_remove(request, {_BULK_PATHS}) ELSE '' END"
"""A request without its bulk; empty where it cannot be read."""

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id      TEXT NOT NULL UNIQUE,
    project     TEXT NOT NULL,
    name        TEXT NOT NULL,
    request     TEXT NOT NULL,
    digest      BLOB NOT NULL,
    state       TEXT NOT NULL,
    phase       TEXT NOT NULL,
    result      TEXT,
    error       TEXT,
    error_code  TEXT,
    created_at  REAL NOT NULL,
    ended_at    REAL,
    kind        TEXT,
    started_at  REAL,
    step        INTEGER
);
CREATE INDEX IF NOT EXISTS unfinished ON jobs (number) WHERE state IN ('queued', 'running');
CREATE INDEX IF NOT EXISTS by_state ON jobs (state);
CREATE TABLE IF NOT EXISTS events (
    job_id  TEXT NOT NULL,
    number  INTEGER NOT NULL,
    body    TEXT NOT NULL,
    PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
"""
_LATER_COLUMNS = {"kind": "TEXT", "started_at": "REAL", "step": "INTEGER"}
"""Columns that tables of older releases lack; these releases go on working with a table that has them."""

P = ParamSpec("P")


def _in_thread(
    method: Callable[Concatenate[JobStore, P], T],
) -> Callable[Concatenate[JobStore, P], Coroutine[Any, Any, T]]:
    """Have the store's thread run the method. Raises DiskError and JobStoreError where the table fails."""

    @wraps(method)
    async def run(self: JobStore, /, *given: P.args, **options: P.kwargs) -> T:
        try:
            work = partial(method, self, *given, **options)
            return await asyncio.get_running_loop().run_in_executor(self.thread, work)
        except sqlite3.Error as error:
            if disk_trouble(error, self.path):
                raise disk_error(error, self.path, "the table of jobs cannot be used") from error
            raise JobStoreError(f"cannot use {self.path}: {error}") from error

    return run


class JobStore(JobTable):
    """The table of jobs and their events in a SQLite file."""

    LISTED_FROM = "jobs INDEXED BY listed"
    """The index holds what is listed, so that no request, which may be large, is passed over."""
    NEWEST_STEP = "max(json_extract(result, '$.step'))"
    """Rows of older releases have no other."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises ConfigurationError when another version of ART wrote it or it is damaged, DiskError.
        """
        self.path = path
        self._database = _open(path)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="jobs")

    @_in_thread
    def rows(self, query: str, *values: Any) -> list[Any]:
        """See `JobTable.rows`."""
        return self._database.execute(query, values).fetchall()

    @_in_thread
    def insert(self, job: NewJob) -> bytes | None:
        """See `JobTable.insert`."""
        with self._database as db:
            row = db.execute("SELECT digest FROM jobs WHERE job_id = ?", (job.job_id,)).fetchone()
            if row is not None:
                return bytes(row[0])
            columns = "job_id, project, name, request, digest, created_at, kind, state, phase"
            values = (*(job.job_id, job.project, job.name, job.request, job.digest), time.time(), job.kind)
            marks = "?, ?, ?, ?, ?, ?, ?, 'queued', 'queued'"
            db.execute(f"INSERT INTO jobs ({columns}) VALUES ({marks})", values)
            _append(db, job.job_id, JobEvent(number=1, type="state", phase="queued"))
        return None

    @_in_thread
    def progress(self, job_id: str, phase: str, *, done: int = 0, total: int = 0) -> None:
        """See `JobTable.progress`."""
        with self._database as db:
            started = "started_at = coalesce(started_at, ?)"
            db.execute(
                f"UPDATE jobs SET state = 'running', phase = ?, {started} WHERE job_id = ?",
                (phase, time.time(), job_id),
            )
            event = JobEvent(number=1, type="progress", phase=phase, done=done, total=total)
            _append(db, job_id, event)

    @_in_thread
    def end(self, job_id: str, values: EndedJob, event: JobEvent) -> None:
        """See `JobTable.end`."""
        row = [values.get(name) for name in ("state", "state", "result", "error", "error_code", "step")]
        with self._database as db:
            db.execute(
                "UPDATE jobs SET state = ?, phase = ?, result = ?, error = ?, error_code = ?, step = ?, "
                f"ended_at = ?, request = CASE WHEN length(request) <= ? THEN request ELSE {_SETTINGS} END "
                "WHERE job_id = ?",
                (*row, time.time(), KEPT_REQUEST, job_id),
            )
            _append(db, job_id, event)

    @_in_thread
    def shorten(self, job_ids: Sequence[str]) -> None:
        """See `JobTable.shorten`."""
        with self._database as db:
            for job_id in job_ids:
                db.execute(f"UPDATE jobs SET request = {_SETTINGS} WHERE job_id = ?", (job_id,))
                db.execute("DELETE FROM events WHERE job_id = ?", (job_id,))

    async def close(self) -> None:
        """See `JobTable.close`."""
        await asyncio.to_thread(self.thread.shutdown)
        self._database.close()


def _open(path: Path) -> sqlite3.Connection:
    try:
        create_private(path)
        database = sqlite3.connect(path, check_same_thread=False, timeout=30.0)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise ConfigurationError(
                f"{path} has version {version}, this program writes version {_VERSION}; use another "
                f"data folder"
            )
        database.executescript(_SCHEMA)
        there = {row[1] for row in database.execute("PRAGMA table_info(jobs)")}
        for column, kind in _LATER_COLUMNS.items():
            if column not in there:
                database.execute(f"ALTER TABLE jobs ADD COLUMN {column} {kind}")
        database.execute(f"CREATE INDEX IF NOT EXISTS listed ON jobs ({', '.join(LISTED)})")
        database.execute(f"PRAGMA user_version = {_VERSION}")
        database.commit()
        # What a start needs is read now: a damaged file is to be told before anybody is served.
        database.execute("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')").fetchone()
    except (sqlite3.DatabaseError, OSError) as error:
        if isinstance(error, OSError) or disk_trouble(error, path):
            raise disk_error(error, path, "the table of jobs cannot be opened") from error
        raise ConfigurationError(
            f"{path} is no table of training jobs or is damaged ({error}). Restore a backup; or move it away "
            f"with {path.name}-wal: samples and checkpoints are in other files, a job whose step is "
            "committed is not trained again, and jobs that were waiting have to be sent again"
        ) from error
    return database


def _append(db: sqlite3.Connection, job_id: str, event: JobEvent) -> None:
    """Write an event under the next number of its job."""
    last = db.execute("SELECT max(number) FROM events WHERE job_id = ?", (job_id,)).fetchone()[0] or 0
    body = event.model_copy(update={"number": last + 1}).model_dump_json()
    db.execute("INSERT INTO events VALUES (?, ?, ?)", (job_id, last + 1, body))

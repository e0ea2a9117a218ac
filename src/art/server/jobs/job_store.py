"""Training jobs on disk (what was asked, how far it came, what came out, every event), and the queue that
says whose job is next.

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
import hashlib
import sqlite3
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, get_args

from art.errors import ARTError, ConfigurationError, NotFoundError, RequestError
from art.process.fair_queue import FairQueue
from art.process.files import create_private, disk_error, disk_trouble
from art.server.tenancy import SEPARATOR, Tenant, tenant_of
from art.wire.jobs import (
    MOST_LISTED_JOBS,
    JobEvent,
    JobInfo,
    JobList,
    JobState,
    JobSummary,
    SftJobRequest,
    TrainJobRequest,
    TrainResultInfo,
)
from art.wire.records import PieceError, read_pieces, write_pieces


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedJob:
    """A job that waits. What was asked for stays on disk until it runs: it may be large."""

    job_id: str
    project: str
    name: str

    @property
    def model(self) -> str:
        return f"{self.project}/{self.name}"


class JobQueue:
    """The waiting jobs of one trainer."""

    def __init__(self) -> None:
        self._tenants: FairQueue[str] = FairQueue()
        """A tenant's name for each of its jobs."""
        self._jobs: dict[str, FairQueue[QueuedJob]] = {}
        """By tenant; their owners are its models."""
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
STATES: tuple[JobState, ...] = get_args(JobState)

JobRequest = TrainJobRequest | SftJobRequest
"""What may be asked; each has fields that no other has, so that its JSON tells which it is."""

KEPT_REQUEST = 1024 * 1024
"""Characters; of a longer request the settings alone are kept when its job has ended. Its digest still tells
it from another."""
BULK = ("groups", "discarded", "conversations", "batches", "learning_rates")
"""All but the settings."""
_BULK_PATHS = ", ".join(f"'$.{name}'" for name in BULK)

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
LISTED = (
    *("number", "job_id", "project", "name", "kind", "state", "phase", "step", "error_code"),
    *("created_at", "started_at", "ended_at"),
)
"""What the list of jobs says. An index holds it, so that no request, which may be large, is passed over."""
_LATER_COLUMNS = {"kind": "TEXT", "started_at": "REAL", "step": "INTEGER"}
"""Columns that tables of older releases lack; these releases go on working with a table that has them."""


class JobStoreError(ARTError):
    """A job could not be written or read: the disk is full, or the file is damaged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """One row: a training job of one model."""

    job_id: str
    project: str
    name: str
    request: JobRequest

    @property
    def model(self) -> str:
        return f"{self.project}/{self.name}"


class JobTable(Protocol):
    """The methods of every table of jobs, wherever it is; `JobStore` says what each does."""

    async def submit(self, project: str, name: str, request: JobRequest) -> bool: ...
    async def info(self, job_id: str) -> JobInfo: ...
    async def unfinished(self) -> list[QueuedJob]: ...
    async def counts(self) -> dict[str, int]: ...
    async def listed(
        self,
        tenant: Tenant,
        *,
        model: str | None = None,
        state: str | None = None,
        before: str | None = None,
        limit: int = MOST_LISTED_JOBS,
    ) -> JobList: ...
    async def job(self, job_id: str) -> TrainingJob: ...
    async def unfinished_ids(self, project: str, name: str) -> list[str]: ...
    async def named_samples(self, job_id: str) -> frozenset[str]: ...
    async def newest_step(self, project: str, name: str) -> int: ...
    async def events(self, job_id: str, after: int) -> list[JobEvent]: ...
    async def progress(self, job_id: str, phase: str, *, done: int = 0, total: int = 0) -> None: ...
    async def finish(self, job_id: str, result: TrainResultInfo) -> None: ...
    async def fail(self, job_id: str, error: str, code: str) -> None: ...
    async def close(self) -> None: ...


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


class JobStore:
    """The table of jobs and their events."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises ConfigurationError when another version of ART wrote it or it is damaged, DiskError.
        """
        self.path = path
        self._database = _open(path)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="jobs")

    @_in_thread
    def submit(self, project: str, name: str, request: JobRequest) -> bool:
        """Write a job down; False when it was known already.

        Raises RequestError (409) when the id belongs to a job with other content.
        """
        text = write_pieces(request)
        digest = digest_of_request(project, name, text)
        with self._database as db:
            row = db.execute("SELECT digest FROM jobs WHERE job_id = ?", (request.job_id,)).fetchone()
            if row is None:
                kind = "sft" if isinstance(request, SftJobRequest) else "rl"
                values = (request.job_id, project, name, text, digest, "queued", "queued", time.time(), kind)
                columns = "job_id, project, name, request, digest, state, phase, created_at, kind"
                db.execute(f"INSERT INTO jobs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
                _append(db, request.job_id, JobEvent(number=1, type="state", phase="queued"))
                return True
        if bytes(row[0]) != digest:
            raise conflict_error(request.job_id)
        return False

    @_in_thread
    def info(self, job_id: str) -> JobInfo:
        """Raises NotFoundError."""
        query = "SELECT project, name, state, result, error, error_code FROM jobs WHERE job_id = ?"
        row = self._one_row(query, job_id)
        return JobInfo(
            job_id=job_id,
            model=f"{row[0]}/{row[1]}",
            state=row[2],
            result=TrainResultInfo.model_validate_json(row[3]) if row[3] else None,
            error=row[4],
            error_code=row[5],
        )

    @_in_thread
    def unfinished(self) -> list[QueuedJob]:
        """Jobs that were running, then those that are queued, in the order in which they were asked for."""
        unfinished = "state IN ('queued', 'running')"
        query = f"SELECT job_id, project, name FROM jobs WHERE {unfinished} ORDER BY state = 'queued', number"
        rows = self._database.execute(query)
        return [QueuedJob(job_id=row[0], project=row[1], name=row[2]) for row in rows]

    @_in_thread
    def counts(self) -> dict[str, int]:
        """Returns how many jobs are in each state. The index answers: rows may hold megabytes."""
        found = dict(self._database.execute("SELECT state, COUNT(*) FROM jobs GROUP BY state").fetchall())
        return {state: found.get(state, 0) for state in STATES}

    @_in_thread
    def listed(
        self,
        tenant: Tenant,
        *,
        model: str | None = None,
        state: str | None = None,
        before: str | None = None,
        limit: int = MOST_LISTED_JOBS,
    ) -> JobList:
        """Returns the newest jobs that the tenant may see. model, before: as they are called inside.

        Raises NotFoundError for an unknown job.
        """
        last = None if before is None else self._one_row("SELECT number FROM jobs WHERE job_id = ?", before)
        conditions = {
            "substr(project, 1, ?) = ?": tenant and (len(tenant) + 1, f"{tenant}{SEPARATOR}"),
            "project || '/' || name = ?": model and (model,),
            "state = ?": state and (state,),
            "number < ?": last,
        }
        asked = {text: values for text, values in conditions.items() if values}
        where = f"WHERE {' AND '.join(asked)} " if asked else ""
        query = f"SELECT {', '.join(LISTED)} FROM jobs INDEXED BY listed {where}ORDER BY number DESC LIMIT ?"
        values = [value for given in asked.values() for value in given]
        rows = self._database.execute(query, (*values, limit + 1)).fetchall()
        jobs = [self._summary(dict(zip(LISTED, row, strict=True))) for row in rows[:limit]]
        return JobList(jobs=jobs, before=jobs[-1].job_id if len(rows) > limit else None)

    def _summary(self, row: dict[str, Any]) -> JobSummary:
        model, _ = f"{row.pop('project')}/{row.pop('name')}", row.pop("number")
        if row["state"] != "running":
            return JobSummary(model=model, **row)
        query = "SELECT body FROM events WHERE job_id = ? ORDER BY number DESC LIMIT 1"
        (body,) = self._database.execute(query, (row["job_id"],)).fetchone()
        event = JobEvent.model_validate_json(body)
        return JobSummary(model=model, done=event.done, total=event.total, **row)

    @_in_thread
    def job(self, job_id: str) -> TrainingJob:
        """Returns the request of an unfinished job. Raises NotFoundError."""
        row = self._one_row("SELECT project, name, request FROM jobs WHERE job_id = ?", job_id)
        return TrainingJob(job_id=job_id, project=row[0], name=row[1], request=read_request(row[2]))

    @_in_thread
    def unfinished_ids(self, project: str, name: str) -> list[str]:
        """Ids of a model's jobs that are queued or were running, in their order."""
        where = "state IN ('queued', 'running') AND project = ? AND name = ?"
        query = f"SELECT job_id FROM jobs WHERE {where} ORDER BY number"
        return [str(row[0]) for row in self._database.execute(query, (project, name))]

    @_in_thread
    def named_samples(self, job_id: str) -> frozenset[str]:
        """Returns the samples that an unfinished job names. Raises NotFoundError."""
        row = self._one_row("SELECT request FROM jobs WHERE job_id = ?", job_id)
        return samples_of_request(read_request(row[0]))

    @_in_thread
    def newest_step(self, project: str, name: str) -> int:
        """The last step that a job of the model made; 0: none is known."""
        query = (
            "SELECT max(json_extract(result, '$.step')) FROM jobs "
            "WHERE state = 'done' AND project = ? AND name = ?"
        )
        return int(self._database.execute(query, (project, name)).fetchone()[0] or 0)

    @_in_thread
    def events(self, job_id: str, after: int) -> list[JobEvent]:
        """Events with a number above `after`."""
        query = "SELECT body FROM events WHERE job_id = ? AND number > ? ORDER BY number"
        return [
            JobEvent.model_validate_json(row[0]) for row in self._database.execute(query, (job_id, after))
        ]

    @_in_thread
    def progress(self, job_id: str, phase: str, *, done: int = 0, total: int = 0) -> None:
        """Records that a job is running, and its progress."""
        with self._database as db:
            started = "started_at = coalesce(started_at, ?)"
            db.execute(
                f"UPDATE jobs SET state = 'running', phase = ?, {started} WHERE job_id = ?",
                (phase, time.time(), job_id),
            )
            event = JobEvent(number=1, type="progress", phase=phase, done=done, total=total)
            _append(db, job_id, event)

    @_in_thread
    def finish(self, job_id: str, result: TrainResultInfo) -> None:
        with self._database as db:
            _end(db, job_id, "done", result=result.model_dump_json(), step=result.step)
            _append(db, job_id, JobEvent(number=1, type="result", result=result))

    @_in_thread
    def fail(self, job_id: str, error: str, code: str) -> None:
        with self._database as db:
            _end(db, job_id, "failed", error=error, code=code)
            _append(db, job_id, JobEvent(number=1, type="error", error=error, error_code=code))

    async def close(self) -> None:
        await asyncio.to_thread(self.thread.shutdown)
        self._database.close()

    def _one_row(self, query: str, job_id: str) -> sqlite3.Row:
        row: sqlite3.Row | None = self._database.execute(query, (job_id,)).fetchone()
        if row is None:
            raise NotFoundError(f"no job {job_id!r}", status=404, code="job_not_found")
        return row


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


def read_request(text: str) -> JobRequest:
    """Reads the request of the kind whose fields these are; piece by piece: it may be large."""
    try:
        return read_pieces(SftJobRequest, text)
    except PieceError:
        return read_pieces(TrainJobRequest, text)


def digest_of_request(project: str, name: str, text: str) -> bytes:
    """Returns what tells a request, sent again, from another one with the same id."""
    return hashlib.sha256(f"{project}/{name}\n{text}".encode()).digest()


def conflict_error(job_id: str) -> RequestError:
    """Returns the error of an id that belongs to another job."""
    return RequestError(
        f"job {job_id!r} exists with other content; make a new id for each job",
        status=409,
        code="job_conflict",
        param="job_id",
    )


def samples_of_request(request: JobRequest) -> frozenset[str]:
    """Returns the samples that a request names."""
    if isinstance(request, SftJobRequest):
        return frozenset(name for one in request.conversations for name in one.samples.values())
    groups = [*request.groups, *request.discarded]
    return frozenset(name for group in groups for one in group.trajectories for name in one.samples)


def _append(db: sqlite3.Connection, job_id: str, event: JobEvent) -> None:
    """Write an event under the next number of its job."""
    last = db.execute("SELECT max(number) FROM events WHERE job_id = ?", (job_id,)).fetchone()[0] or 0
    body = event.model_copy(update={"number": last + 1}).model_dump_json()
    db.execute("INSERT INTO events VALUES (?, ?, ?)", (job_id, last + 1, body))


def _end(
    db: sqlite3.Connection,
    job_id: str,
    state: JobState,
    *,
    result: str | None = None,
    error: str | None = None,
    code: str | None = None,
    step: int | None = None,
) -> None:
    db.execute(
        "UPDATE jobs SET state = ?, phase = ?, result = ?, error = ?, error_code = ?, step = ?, "
        "ended_at = ?, request = CASE WHEN length(request) <= ? THEN request "
        f"WHEN json_valid(request) THEN json_remove(request, {_BULK_PATHS}) ELSE '' END WHERE job_id = ?",
        (state, state, result, error, code, step, time.time(), KEPT_REQUEST, job_id),
    )

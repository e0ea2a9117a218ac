"""Training jobs in Postgres: the table of jobs and their events, written by the controller alone.

Each write is one transaction, done exactly once (`database.py`), and only while the server that writes is
still the controller (`gateways.py`). Any server may read.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson

from art.errors import NotFoundError
from art.server.jobs.job_store import (
    BULK,
    KEPT_REQUEST,
    LISTED,
    STATES,
    JobRequest,
    JobStoreError,
    QueuedJob,
    TrainingJob,
    conflict_error,
    digest_of_request,
    read_request,
    samples_of_request,
)
from art.server.tenancy import SEPARATOR, Tenant
from art.wire.jobs import (
    MOST_LISTED_JOBS,
    JobEvent,
    JobInfo,
    JobList,
    JobSummary,
    SftJobRequest,
    TrainResultInfo,
)
from art.wire.records import write_pieces
from art_extensions.postgres.database import Connection, DatabaseError, PostgresDatabase
from art_extensions.postgres.gateways import require_epoch

T = TypeVar("T")

_VERSION = 1
_CREATE = """
CREATE TABLE jobs (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id TEXT NOT NULL UNIQUE,
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    request TEXT NOT NULL,
    digest BYTEA NOT NULL,
    state TEXT NOT NULL,
    phase TEXT NOT NULL,
    result TEXT,
    error TEXT,
    error_code TEXT,
    created_at DOUBLE PRECISION NOT NULL,
    ended_at DOUBLE PRECISION,
    kind TEXT,
    started_at DOUBLE PRECISION,
    step INTEGER,
    epoch BIGINT
);
CREATE INDEX jobs_unfinished ON jobs (number) WHERE state IN ('queued', 'running');
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE events (
    job_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (job_id, number)
);
"""
_UNFINISHED = "state IN ('queued', 'running')"


class PostgresJobStore:
    """The table of jobs and their events. `open` it."""

    def __init__(self, database: PostgresDatabase, epoch: int | None) -> None:
        self._database, self._epoch = database, epoch
        self._lane = database.lane()

    @classmethod
    async def open(cls, database: PostgresDatabase, *, epoch: int | None) -> PostgresJobStore:
        """The jobs of a database. epoch: of the controller that writes; None: no other server can be it.

        Raises: ConfigurationError when another version of ART wrote them, DatabaseError.
        """
        await database.prepare_tables("jobs", _VERSION, _CREATE)
        return cls(database, epoch)

    async def submit(self, project: str, name: str, request: JobRequest) -> bool:
        """Write a job down; False when it was known already.

        Raises RequestError (409) when the id belongs to a job with other content.
        """
        text = write_pieces(request)
        digest, kind = digest_of_request(project, name, text), _kind_of(request)

        async def work(connection: Connection) -> bytes | None:
            insert = (
                "INSERT INTO jobs "
                "(job_id, project, name, request, digest, state, phase, created_at, kind, epoch) "
                "VALUES ($1, $2, $3, $4, $5, 'queued', 'queued', $6, $7, $8) "
                "ON CONFLICT (job_id) DO NOTHING RETURNING 1"
            )
            values = (request.job_id, project, name, text, digest, time.time(), kind, self._epoch)
            if await connection.fetchval(insert, *values):
                await _append(connection, request.job_id, JobEvent(number=1, type="state", phase="queued"))
                return None
            query = "SELECT digest FROM jobs WHERE job_id = $1"
            return bytes(await connection.fetchval(query, request.job_id))

        known = await self._write(work)
        if known not in (None, digest):
            raise conflict_error(request.job_id)
        return known is None

    async def info(self, job_id: str) -> JobInfo:
        """Raises NotFoundError."""
        query = "SELECT project, name, state, result, error, error_code FROM jobs WHERE job_id = $1"
        row = await self._one_row(query, job_id)
        return JobInfo(
            job_id=job_id,
            model=f"{row[0]}/{row[1]}",
            state=row[2],
            result=TrainResultInfo.model_validate_json(row[3]) if row[3] else None,
            error=row[4],
            error_code=row[5],
        )

    async def unfinished(self) -> list[QueuedJob]:
        """Jobs that were running, then those that are queued, in the order in which they were asked for."""
        order = "ORDER BY state = 'queued', number"
        rows = await self._rows(f"SELECT job_id, project, name FROM jobs WHERE {_UNFINISHED} {order}")
        return [QueuedJob(job_id=row[0], project=row[1], name=row[2]) for row in rows]

    async def counts(self) -> dict[str, int]:
        """Returns how many jobs are in each state."""
        found = dict(await self._rows("SELECT state, count(*) FROM jobs GROUP BY state"))
        return {state: found.get(state, 0) for state in STATES}

    async def listed(
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
        if before is None:
            last = None
        else:
            (last,) = await self._one_row("SELECT number FROM jobs WHERE job_id = $1", before)
        query = (
            f"SELECT {', '.join(LISTED)} FROM jobs WHERE ($1::text IS NULL OR starts_with(project, $1)) "
            "AND ($2::text IS NULL OR project || '/' || name = $2) AND ($3::text IS NULL OR state = $3) "
            "AND ($4::bigint IS NULL OR number < $4) ORDER BY number DESC LIMIT $5"
        )
        own = tenant and f"{tenant}{SEPARATOR}"
        rows = await self._rows(query, own or None, model, state, last, limit + 1)
        jobs = [await self._summary(dict(zip(LISTED, row, strict=True))) for row in rows[:limit]]
        return JobList(jobs=jobs, before=jobs[-1].job_id if len(rows) > limit else None)

    async def _summary(self, row: dict[str, Any]) -> JobSummary:
        model, _ = f"{row.pop('project')}/{row.pop('name')}", row.pop("number")
        if row["state"] != "running":
            return JobSummary(model=model, **row)
        query = "SELECT body FROM events WHERE job_id = $1 ORDER BY number DESC LIMIT 1"
        ((body,),) = await self._rows(query, row["job_id"])
        event = JobEvent.model_validate_json(body)
        return JobSummary(model=model, done=event.done, total=event.total, **row)

    async def job(self, job_id: str) -> TrainingJob:
        """Returns the request of an unfinished job. Raises NotFoundError."""
        row = await self._one_row("SELECT project, name, request FROM jobs WHERE job_id = $1", job_id)
        return TrainingJob(job_id=job_id, project=row[0], name=row[1], request=read_request(row[2]))

    async def unfinished_ids(self, project: str, name: str) -> list[str]:
        """Ids of a model's jobs that are queued or were running, in their order."""
        query = f"SELECT job_id FROM jobs WHERE {_UNFINISHED} AND project = $1 AND name = $2 ORDER BY number"
        return [str(row[0]) for row in await self._rows(query, project, name)]

    async def named_samples(self, job_id: str) -> frozenset[str]:
        """Returns the samples that an unfinished job names. Raises NotFoundError."""
        return samples_of_request((await self.job(job_id)).request)

    async def newest_step(self, project: str, name: str) -> int:
        """The last step that a job of the model made; 0: none is known."""
        query = "SELECT max(step) FROM jobs WHERE state = 'done' AND project = $1 AND name = $2"
        return int((await self._rows(query, project, name))[0][0] or 0)

    async def events(self, job_id: str, after: int) -> list[JobEvent]:
        """Events with a number above `after`."""
        query = "SELECT body FROM events WHERE job_id = $1 AND number > $2 ORDER BY number"
        return [JobEvent.model_validate_json(row[0]) for row in await self._rows(query, job_id, after)]

    async def progress(self, job_id: str, phase: str, *, done: int = 0, total: int = 0) -> None:
        """Records that a job is running, and its progress."""
        event = JobEvent(number=1, type="progress", phase=phase, done=done, total=total)

        async def work(connection: Connection) -> None:
            await connection.execute(
                "UPDATE jobs SET state = 'running', phase = $2, started_at = coalesce(started_at, $3), "
                "epoch = $4 WHERE job_id = $1",
                *(job_id, phase, time.time(), self._epoch),
            )
            await _append(connection, job_id, event)

        await self._write(work)

    async def finish(self, job_id: str, result: TrainResultInfo) -> None:
        """Records a job's result."""
        values = {"state": "done", "result": result.model_dump_json(), "step": result.step}
        await self._end(job_id, values, JobEvent(number=1, type="result", result=result))

    async def fail(self, job_id: str, error: str, code: str) -> None:
        """Records why a job failed."""
        values = {"state": "failed", "error": error.replace("\0", "\\0"), "error_code": code}
        await self._end(job_id, values, JobEvent(number=1, type="error", error=error, error_code=code))

    async def close(self) -> None:
        """Ends the connection that writes."""
        await self._lane.close()

    async def _end(self, job_id: str, values: dict[str, Any], event: JobEvent) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(
                "UPDATE jobs SET state = $2, phase = $2, result = $3, error = $4, error_code = $5, "
                "step = $6, ended_at = $7, epoch = $8 WHERE job_id = $1",
                *(job_id, values["state"], values.get("result"), values.get("error")),
                *(values.get("error_code"), values.get("step"), time.time(), self._epoch),
            )
            large = "SELECT request FROM jobs WHERE job_id = $1 AND length(request) > $2"
            if (text := await connection.fetchval(large, job_id, KEPT_REQUEST)) is not None:
                kept = {name: value for name, value in orjson.loads(text).items() if name not in BULK}
                update = "UPDATE jobs SET request = $2 WHERE job_id = $1"
                await connection.execute(update, job_id, orjson.dumps(kept).decode())
            await _append(connection, job_id, event)

        await self._write(work)

    async def _write(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Raises LostControlError when another server has become the controller, JobStoreError."""

        async def fenced(connection: Connection) -> T:
            if self._epoch is not None:
                await require_epoch(connection, self._epoch)
            return await work(connection)

        try:
            return await self._lane.commit(fenced)
        except DatabaseError as error:
            raise JobStoreError(f"cannot use the table of jobs: {error}") from error

    async def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return await self._database.rows(query, *values)
        except DatabaseError as error:
            raise JobStoreError(f"cannot use the table of jobs: {error}") from error

    async def _one_row(self, query: str, job_id: str) -> tuple[Any, ...]:
        rows = await self._rows(query, job_id)
        if not rows:
            raise NotFoundError(f"no job {job_id!r}", status=404, code="job_not_found")
        return rows[0]


def _kind_of(request: JobRequest) -> str:
    return "sft" if isinstance(request, SftJobRequest) else "rl"


async def _append(connection: Connection, job_id: str, event: JobEvent) -> None:
    """Write an event under the next number of its job."""
    last = await connection.fetchval("SELECT max(number) FROM events WHERE job_id = $1", job_id) or 0
    body = event.model_copy(update={"number": last + 1}).model_dump_json()
    await connection.execute("INSERT INTO events VALUES ($1, $2, $3)", job_id, last + 1, body)

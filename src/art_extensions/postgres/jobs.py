"""Training jobs in Postgres: the table of jobs and their events, written by the controller alone.

Each write is one transaction, done exactly once (`database.py`), and only while the server that writes is
still the controller (`gateways.py`). Any server may read.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import orjson

from art.server.jobs.job_table import BULK, KEPT_REQUEST, EndedJob, JobStoreError, JobTable, NewJob
from art.wire.jobs import JobEvent
from art_extensions.postgres.database import Connection, DatabaseError, PostgresDatabase, numbered
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


class PostgresJobStore(JobTable):
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

    async def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """See `JobTable.rows`."""
        try:
            return await self._database.rows(numbered(query), *values)
        except DatabaseError as error:
            raise JobStoreError(f"cannot use the table of jobs: {error}") from error

    async def insert(self, job: NewJob) -> bytes | None:
        """See `JobTable.insert`."""

        async def work(connection: Connection) -> bytes | None:
            insert = (
                "INSERT INTO jobs "
                "(job_id, project, name, request, digest, state, phase, created_at, kind, epoch) "
                "VALUES ($1, $2, $3, $4, $5, 'queued', 'queued', $6, $7, $8) "
                "ON CONFLICT (job_id) DO NOTHING RETURNING 1"
            )
            values = (*(job.job_id, job.project, job.name, job.request, job.digest), time.time(), job.kind)
            if await connection.fetchval(insert, *values, self._epoch):
                await _append(connection, job.job_id, JobEvent(number=1, type="state", phase="queued"))
                return None
            query = "SELECT digest FROM jobs WHERE job_id = $1"
            return bytes(await connection.fetchval(query, job.job_id))

        return await self._write(work)

    async def progress(self, job_id: str, phase: str, *, done: int = 0, total: int = 0) -> None:
        """See `JobTable.progress`."""
        event = JobEvent(number=1, type="progress", phase=phase, done=done, total=total)

        async def work(connection: Connection) -> None:
            await connection.execute(
                "UPDATE jobs SET state = 'running', phase = $2, started_at = coalesce(started_at, $3), "
                "epoch = $4 WHERE job_id = $1",
                *(job_id, phase, time.time(), self._epoch),
            )
            await _append(connection, job_id, event)

        await self._write(work)

    async def close(self) -> None:
        """See `JobTable.close`."""
        await self._lane.close()

    async def end(self, job_id: str, values: EndedJob, event: JobEvent) -> None:
        """See `JobTable.end`."""
        error = values.get("error")

        async def work(connection: Connection) -> None:
            await connection.execute(
                "UPDATE jobs SET state = $2, phase = $2, result = $3, error = $4, error_code = $5, "
                "step = $6, ended_at = $7, epoch = $8 WHERE job_id = $1",
                *(job_id, values["state"], values.get("result"), error and error.replace("\0", "\\0")),
                *(values.get("error_code"), values.get("step"), time.time(), self._epoch),
            )
            await _keep_settings(connection, job_id, longer_than=KEPT_REQUEST)
            await _append(connection, job_id, event)

        await self._write(work)

    async def shorten(self, job_ids: Sequence[str]) -> None:
        """See `JobTable.shorten`."""

        async def work(connection: Connection) -> None:
            for job_id in job_ids:
                await _keep_settings(connection, job_id, longer_than=0)
                await connection.execute("DELETE FROM events WHERE job_id = $1", job_id)

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


async def _keep_settings(connection: Connection, job_id: str, *, longer_than: int) -> None:
    """Keep of a request with more characters the settings alone."""
    query = "SELECT request FROM jobs WHERE job_id = $1 AND length(request) > $2"
    if (text := await connection.fetchval(query, job_id, longer_than)) is not None:
        settings = {name: value for name, value in orjson.loads(text).items() if name not in BULK}
        update = "UPDATE jobs SET request = $2 WHERE job_id = $1"
        await connection.execute(update, job_id, orjson.dumps(settings).decode())


async def _append(connection: Connection, job_id: str, event: JobEvent) -> None:
    """Write an event under the next number of its job."""
    last = await connection.fetchval("SELECT max(number) FROM events WHERE job_id = $1", job_id) or 0
    body = event.model_copy(update={"number": last + 1}).model_dump_json()
    await connection.execute("INSERT INTO events VALUES ($1, $2, $3)", job_id, last + 1, body)

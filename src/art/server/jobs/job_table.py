"""The table of training jobs (what was asked, how far it came, what came out, every event), wherever it is.

All reading is here, in SQL that SQLite and Postgres both take. `JobStore` and the store of an extension say
how rows are read and how a change is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, get_args

from art.errors import ARTError, NotFoundError, RequestError
from art.server.tenancy import SEPARATOR, Tenant
from art.wire.jobs import (
    MOST_LISTED_JOBS,
    ExtensionJobRequest,
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
from art.wire.training import TrainingKind

STATES: tuple[JobState, ...] = get_args(JobState)

JobRequest = TrainJobRequest | SftJobRequest
"""What may be asked; each has fields that no other has, so that its JSON tells which it is."""

KEPT_REQUEST = 1024 * 1024
"""Characters; of a longer request the settings alone are kept when its job has ended. Its digest still tells
it from another."""
MOST_SHORTENED = 64
"""Jobs that are shortened after one step; others after the next."""
BULK = ("groups", "discarded", "conversations", "batches", "learning_rates")
"""All but the settings."""
LISTED = (
    *("number", "job_id", "project", "name", "kind", "state", "phase", "step", "error_code"),
    *("created_at", "started_at", "ended_at"),
)
"""What the list of jobs says."""
_UNFINISHED = "state IN ('queued', 'running')"


class JobStoreError(ARTError):
    """A job could not be written or read: the disk is full, or the file is damaged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedJob:
    """A job that waits. What was asked for stays on disk until it runs: it may be large."""

    job_id: str
    project: str
    name: str

    @property
    def model(self) -> str:
        return f"{self.project}/{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob(QueuedJob):
    """A job that runs, with what was asked for."""

    request: JobRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class NewJob:
    """The row of a job that is asked for."""

    job_id: str
    project: str
    name: str
    request: str
    digest: bytes
    kind: str


class EndedJob(TypedDict, total=False):
    """The values that are written of a job that has ended."""

    state: JobState
    result: str
    step: int
    error: str
    error_code: str


class JobTable(ABC):
    """The jobs of a server, and their events. Each method raises JobStoreError and DiskError."""

    LISTED_FROM = "jobs"
    NEWEST_STEP = "max(step)"

    # -- what a database says of its own --

    @abstractmethod
    async def rows(self, query: str, *values: Any) -> Sequence[Sequence[Any]]:
        """Returns the rows of a query, in which `?` stands for a value."""

    @abstractmethod
    async def insert(self, job: NewJob) -> bytes | None:
        """Adds a job with its first event. Returns the digest of the job that has its id already, or None."""

    @abstractmethod
    async def progress(self, job_id: str, phase: str, *, done: int = 0, total: int = 0) -> None:
        """Records that a job is running, and its progress."""

    @abstractmethod
    async def end(self, job_id: str, values: EndedJob, event: JobEvent) -> None:
        """Records how a job ended, and its last event. Of a long request the settings alone stay."""

    @abstractmethod
    async def shorten(self, job_ids: Sequence[str]) -> None:
        """Keeps of the requests of ended jobs the settings alone, and none of their events."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the connection."""

    # -- what is the same everywhere --

    async def ended_before(
        self, project: str, name: str, step: int, after: int
    ) -> list[tuple[int, str, int]]:
        """Returns number, id and step of the oldest jobs of a model that made an earlier step than this, and
        of those before them that failed (-1), at most `MOST_SHORTENED`. after: theirs are above this number.
        """
        of_model = f"FROM {self.LISTED_FROM} WHERE number > ? AND project = ? AND name = ?"
        newest = f"SELECT coalesce(max(number), 0) {of_model} AND step < ?"
        query = (
            f"SELECT number, job_id, coalesce(step, -1) {of_model} AND number <= ({newest}) "
            "AND (state = 'failed' OR step < ?) ORDER BY number LIMIT ?"
        )
        model = after, project, name
        rows = await self.rows(query, *model, *model, step, step, MOST_SHORTENED)
        return [(number, job_id, made) for number, job_id, made in rows]

    async def submit(self, project: str, name: str, request: JobRequest) -> bool:
        """Write a job down; False when it was known already.

        Raises RequestError (409) when the id belongs to a job with other content.
        """
        text = await asyncio.to_thread(write_pieces, request)  # it may be large
        digest = digest_of_request(project, name, text)
        kind = kind_of_request(request)
        job = NewJob(
            job_id=request.job_id, project=project, name=name, request=text, digest=digest, kind=kind
        )
        known = await self.insert(job)
        if known not in (None, digest):
            raise RequestError(
                f"job {request.job_id!r} exists with other content; make a new id for each job",
                status=409,
                code="job_conflict",
                param="job_id",
            )
        return known is None

    async def finish(self, job_id: str, result: TrainResultInfo) -> None:
        """Records a job's result."""
        values: EndedJob = {"state": "done", "result": result.model_dump_json(), "step": result.step}
        await self.end(job_id, values, JobEvent(number=1, type="result", result=result))

    async def fail(self, job_id: str, error: str, code: str) -> None:
        """Records why a job failed."""
        values: EndedJob = {"state": "failed", "error": error, "error_code": code}
        await self.end(job_id, values, JobEvent(number=1, type="error", error=error, error_code=code))

    async def info(self, job_id: str) -> JobInfo:
        """Raises NotFoundError."""
        query = "SELECT project, name, state, result, error, error_code FROM jobs WHERE job_id = ?"
        project, name, state, result, error, error_code = await self._row_of(query, job_id)
        return JobInfo(
            job_id=job_id,
            model=f"{project}/{name}",
            state=state,
            result=TrainResultInfo.model_validate_json(result) if result else None,
            error=error,
            error_code=error_code,
        )

    async def unfinished(self) -> list[QueuedJob]:
        """Jobs that were running, then those that are queued, in the order in which they were asked for."""
        order = "ORDER BY state = 'queued', number"
        rows = await self.rows(f"SELECT job_id, project, name FROM jobs WHERE {_UNFINISHED} {order}")
        return [QueuedJob(job_id=job_id, project=project, name=name) for job_id, project, name in rows]

    async def counts(self) -> dict[str, int]:
        """Returns how many jobs are in each state. An index answers: rows may hold megabytes."""
        rows = await self.rows("SELECT state, count(*) FROM jobs GROUP BY state")
        found = {state: count for state, count in rows}
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
        number = "SELECT number FROM jobs WHERE job_id = ?"
        last = None if before is None else await self._row_of(number, before)
        conditions: dict[str, Any] = {
            "substr(project, 1, ?) = ?": tenant and (len(tenant) + 1, f"{tenant}{SEPARATOR}"),
            "project || '/' || name = ?": model and (model,),
            "state = ?": state and (state,),
            "number < ?": last,
        }
        asked = {text: values for text, values in conditions.items() if values}
        where = f"WHERE {' AND '.join(asked)} " if asked else ""
        query = f"SELECT {', '.join(LISTED)} FROM {self.LISTED_FROM} {where}ORDER BY number DESC LIMIT ?"
        values = [value for given in asked.values() for value in given]
        rows = await self.rows(query, *values, limit + 1)
        jobs = [await self._summary(dict(zip(LISTED, row, strict=True))) for row in rows[:limit]]
        return JobList(jobs=jobs, before=jobs[-1].job_id if len(rows) > limit else None)

    async def _summary(self, row: dict[str, Any]) -> JobSummary:
        model, _ = f"{row.pop('project')}/{row.pop('name')}", row.pop("number")
        if row["state"] != "running":
            return JobSummary(model=model, **row)
        query = "SELECT body FROM events WHERE job_id = ? ORDER BY number DESC LIMIT 1"
        ((body,),) = await self.rows(query, row["job_id"])
        event = JobEvent.model_validate_json(body)
        return JobSummary(model=model, done=event.done, total=event.total, **row)

    async def job(self, job_id: str) -> TrainingJob:
        """Returns the request of an unfinished job. Raises NotFoundError."""
        query = "SELECT project, name, request FROM jobs WHERE job_id = ?"
        project, name, text = await self._row_of(query, job_id)
        request = await asyncio.to_thread(read_request, text)
        return TrainingJob(job_id=job_id, project=project, name=name, request=request)

    async def unfinished_ids(self, project: str, name: str) -> list[str]:
        """Ids of a model's jobs that are queued or were running, in their order."""
        query = f"SELECT job_id FROM jobs WHERE {_UNFINISHED} AND project = ? AND name = ? ORDER BY number"
        return [str(job_id) for (job_id,) in await self.rows(query, project, name)]

    async def named_samples(self, job_id: str) -> frozenset[str]:
        """Returns the samples that an unfinished job names. Raises NotFoundError."""
        return samples_of_request((await self.job(job_id)).request)

    async def newest_step(self, project: str, name: str) -> int:
        """The last step that a job of the model made; 0: none is known."""
        where = "state = 'done' AND project = ? AND name = ?"
        ((step,),) = await self.rows(f"SELECT {self.NEWEST_STEP} FROM jobs WHERE {where}", project, name)
        return int(step or 0)

    async def events(self, job_id: str, after: int) -> list[JobEvent]:
        """Events with a number above `after`. Of a job that was shortened, its end is the next one."""
        query = "SELECT body FROM events WHERE job_id = ? AND number > ? ORDER BY number"
        found = [JobEvent.model_validate_json(body) for (body,) in await self.rows(query, job_id, after)]
        if found or await self.rows("SELECT 1 FROM events WHERE job_id = ? LIMIT 1", job_id):
            return found
        ended = await self.info(job_id)
        return [
            JobEvent(
                number=after + 1,
                type="result" if ended.result else "error",
                result=ended.result,
                error=ended.error,
                error_code=ended.error_code,
            )
        ]

    async def _row_of(self, query: str, job_id: str) -> Sequence[Any]:
        rows = await self.rows(query, job_id)
        if not rows:
            raise NotFoundError(f"no job {job_id!r}", status=404, code="job_not_found")
        return rows[0]


def read_request(text: str) -> JobRequest:
    """Reads the request of the kind whose fields these are; piece by piece: it may be large."""
    for kind in (SftJobRequest, ExtensionJobRequest):
        with contextlib.suppress(PieceError):
            return read_pieces(kind, text)
    return read_pieces(TrainJobRequest, text)


def kind_of_request(request: JobRequest) -> TrainingKind:
    """Returns what the step learns from."""
    if isinstance(request, ExtensionJobRequest):
        return "preference"
    return "sft" if isinstance(request, SftJobRequest) else "rl"


def digest_of_request(project: str, name: str, text: str) -> bytes:
    """Returns what tells a request, sent again, from another one with the same id."""
    return hashlib.sha256(f"{project}/{name}\n{text}".encode()).digest()


def samples_of_request(request: JobRequest) -> frozenset[str]:
    """Returns the samples that a request names."""
    if isinstance(request, SftJobRequest):
        return frozenset(name for one in request.conversations for name in one.samples.values())
    groups = [*request.groups, *request.discarded]
    return frozenset(name for group in groups for one in group.trajectories for name in one.samples)

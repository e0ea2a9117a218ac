"""Training jobs are accepted once, run one at a time per trainer, told as numbered events, finished after any
crash.

What an earlier server left unfinished is held until somebody wants it: its program registers the model, sends
a job of it, or asks for the job. A server that is started to chat with a model, or to serve one, trains none.

`TrainingJobs` is the queue of each trainer and the events of each job; `JobRunner` runs one try of a job: the
model is opened, the trainer held, the kind of job does the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from art.errors import (
    ARTError,
    DeadlineError,
    DiskError,
    NotFoundError,
    OverloadedError,
    RequestError,
    WorkerError,
    WorkerStalledError,
)
from art.extensions import JOB, load_extension
from art.process.in_use import InUse
from art.rendering.chat_renderer import ChatRenderer
from art.server.catalog import Catalog
from art.server.checkpoints.reference_adapter import reference_folder
from art.server.checkpoints.registered_models import RegisteredModels
from art.server.jobs.job_store import JobQueue
from art.server.jobs.job_table import JobRequest, JobStoreError, JobTable, QueuedJob, TrainingJob
from art.server.jobs.sft_job import SftJob
from art.server.jobs.step_job import StepJob, job_error_code
from art.server.jobs.train_job import TrainJob
from art.server.ledger.face import SampleLedger
from art.server.promotion.promote import Progress, ServedModel, ServedModels
from art.server.settings import ControlSettings, TeacherSettings
from art.server.step_times import StepClock
from art.wire.jobs import (
    ExtensionJobRequest,
    JobEvent,
    JobInfo,
    SftJobRequest,
    TrainJobRequest,
    TrainResultInfo,
)
from art.wire.json_lines import one_line

_log = logging.getLogger(__name__)

RunJob = Callable[[TrainingJob, Progress], Awaitable[TrainResultInfo]]
"""Runs one attempt. It is called again, with the same job, after a worker failed or the server was killed."""
WorkerFailed = Callable[[TrainingJob, WorkerError], Awaitable[None]]

_LONGEST_ID = 200
_ENDED = ("done", "failed")
_AGAIN_SECONDS = 2.0
"""Seconds between two tries to write down what a full disk did not take."""
_FULL_QUEUE_SECONDS = 10.0
"""The seconds after which a job that a full queue refused may be sent again."""


class TrainingJobs:
    """The queue of each trainer and the events of each job."""

    def __init__(
        self,
        store: JobTable,
        *,
        run: RunJob,
        trainer_of: Callable[[str, str], str],
        worker_failed: WorkerFailed,
        settings: ControlSettings,
        clock_of: Callable[[str, str], StepClock] = lambda project, name: StepClock(),
    ) -> None:
        """clock_of: where the time of the steps of a project's model is booked."""
        self.store = store
        self._clock_of = clock_of
        self._run = run
        self._trainer_of = trainer_of
        self._worker_failed = worker_failed
        self._settings = settings
        self._queues: dict[str, JobQueue] = {}
        self._runners: dict[str, asyncio.Task[None]] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._untold: dict[str, JobEvent] = {}
        """How jobs ended that the table could not take yet: the disk is full."""
        self._writing: set[asyncio.Task[None]] = set()
        self._unfinished: Counter[str] = Counter()
        """Jobs of each model that were accepted, or are just being written down."""
        self._jobs_on_hold: dict[str, list[QueuedJob]] = {}
        """The unfinished jobs of an earlier server that nobody asked for yet, by model and in their order."""
        self.accepting = asyncio.Lock()
        """Held while a job is written down: whoever holds it knows what unfinished jobs name."""
        self.after_step: list[Callable[[str, str], None]] = []
        """Called with project and name when a job has made a step."""
        self._named: dict[str, frozenset[str]] = {}
        """The samples of unfinished jobs, as far as somebody asked for them."""

    async def hold_unfinished(self) -> list[QueuedJob]:
        """Returns what an earlier server left unfinished: what it was running first, then in its order.

        Each goes on when it is resumed. A job whose model is gone fails.
        """
        tickets = []
        for ticket in await self.store.unfinished():
            try:
                self._trainer_of(ticket.project, ticket.name)
            except ARTError as error:  # its model's folder was removed meanwhile
                await self.store.fail(ticket.job_id, str(error), job_error_code(error))
                continue
            self._jobs_on_hold.setdefault(ticket.model, []).append(ticket)
            self._unfinished[ticket.model] += 1
            tickets.append(ticket)
        return tickets

    def resume(self, model: str) -> None:
        """Queue the held jobs of a model (`project/name`)."""
        for ticket in self._jobs_on_hold.pop(model, ()):
            self._unfinished[ticket.model] -= 1
            self._enqueue(ticket)
            _log.warning("job %s of %s is resumed", ticket.job_id, ticket.model)

    def resume_all(self) -> None:
        """Queue all held jobs."""
        for model in list(self._jobs_on_hold):
            self.resume(model)

    def _resume_job(self, job_id: str) -> None:
        """Queue the held jobs of the model that a job is of: its program waits for it."""
        asked = next((t for queue in self._jobs_on_hold.values() for t in queue if t.job_id == job_id), None)
        if asked is not None:
            self.resume(asked.model)

    async def submit(self, project: str, name: str, request: JobRequest) -> JobInfo:
        """Accept a job; asking again with the same id and content gives the same job.

        Raises RequestError (400, 409), NotFoundError for an unknown model, and OverloadedError when too many
        jobs of the model are unfinished.
        """
        if not 0 < len(request.job_id) <= _LONGEST_ID:
            raise RequestError(
                f"job_id must have 1 to {_LONGEST_ID} characters, not {len(request.job_id)}",
                status=400,
                code="invalid_job_id",
                param="job_id",
            )
        self._trainer_of(project, name)
        ticket = QueuedJob(job_id=request.job_id, project=project, name=name)
        self.resume(ticket.model)
        if self._unfinished[ticket.model] >= self._settings.queued_jobs:
            await self._refuse_new(ticket)
        self._unfinished[ticket.model] += 1
        try:
            async with self.accepting:
                if await self.store.submit(project, name, request):
                    self._enqueue(ticket)
        finally:
            self._unfinished[ticket.model] -= 1
        return await self.store.info(request.job_id)

    async def pending_samples(self) -> frozenset[str]:
        """Returns the samples that queued and running jobs name."""
        pending = [ticket.job_id for ticket in await self.store.unfinished()]
        self._named = {
            job_id: self._named.get(job_id) or await self.store.named_samples(job_id) for job_id in pending
        }
        return frozenset().union(*self._named.values())

    async def _refuse_new(self, ticket: QueuedJob) -> None:
        """Raises OverloadedError, unless the job was accepted before: then it takes no more room."""
        try:
            await self.store.info(ticket.job_id)
        except NotFoundError as unknown:
            raise OverloadedError(
                f"model {ticket.model} has {self._unfinished[ticket.model]} unfinished training jobs, the "
                f"limit is {self._settings.queued_jobs}: wait until one has ended",
                code="job_queue_full",
                retry_after=_FULL_QUEUE_SECONDS,
            ) from unknown

    def busy(self, model: str) -> bool:
        """Returns whether a job of the model (`project/name`) is queued, running or just being accepted."""
        return self._unfinished[model] > 0

    async def info(self, job_id: str) -> JobInfo:
        """Returns how far a job is, and resumes it if it is held: who asks waits for it.

        Raises NotFoundError.
        """
        self._resume_job(job_id)
        info, end = await self.store.info(job_id), self._untold.get(job_id)
        if end is None:
            return info
        outcome = {"result": end.result, "error": end.error, "error_code": end.error_code}
        return info.model_copy(update={"state": "done" if end.result else "failed", **outcome})

    async def events(self, job_id: str, after: int) -> AsyncIterator[bytes]:
        """Lines of JSON from event `after + 1` on until the job ended; a blank line when nothing happens."""
        while True:
            news = self._news.setdefault(job_id, asyncio.Event())
            news.clear()
            end = self._untold.get(job_id)
            ended = (await self.store.info(job_id)).state in _ENDED
            for event in await self.store.events(job_id, after):
                after = event.number
                yield one_line(event.model_dump_json()) + b"\n"
            if end is not None and not ended:
                yield one_line(end.model_copy(update={"number": after + 1}).model_dump_json()) + b"\n"
            if ended or end is not None:
                self._news.pop(job_id, None)
                return
            try:
                async with asyncio.timeout(self._settings.heartbeat):
                    await news.wait()
            except TimeoutError:
                yield b"\n"

    async def close(self) -> None:
        """Stop running jobs; they stay unfinished and go on when the server starts again."""
        tasks = [*self._runners.values(), *self._writing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.store.close()

    def _enqueue(self, ticket: QueuedJob) -> None:
        trainer = self._trainer_of(ticket.project, ticket.name)
        turns = self._queues.setdefault(trainer, JobQueue())
        turns.put(ticket)
        self._clock_of(ticket.project, ticket.name).queue(1)
        self._unfinished[ticket.model] += 1
        if trainer not in self._runners:
            self._runners[trainer] = asyncio.create_task(self._work(turns), name=f"jobs of {trainer}")

    async def _work(self, turns: JobQueue) -> None:
        """Run one job after the other; again from the last committed step when a worker failed under it."""
        while True:
            ticket = await turns.take_next()
            self._clock_of(ticket.project, ticket.name).queue(-1)
            async with self._until_ended(ticket) as ended:
                job = await self.store.job(ticket.job_id)
                while ended.result is None:
                    try:
                        async with asyncio.timeout(self._settings.job) as limit:
                            ended.result = await self._run(job, partial(self._progress, job.job_id))
                    except (WorkerError, DeadlineError, TimeoutError) as error:
                        failure = _as_worker_error(error, limit.expired(), self._settings.job)
                        ended.attempts += 1
                        _log.warning("job %s, attempt %d: %s", job.job_id, ended.attempts, failure)
                        await self._worker_failed(job, failure)
                        if ended.attempts == self._settings.job_attempts:
                            raise failure from error
                        await self._progress(job.job_id, "queued")

    @contextlib.asynccontextmanager
    async def _until_ended(self, job: QueuedJob) -> AsyncIterator[_Outcome]:
        """However the block ends, that is how the job ended, and it is written down and told."""
        ended = _Outcome()
        try:
            yield ended
        except ARTError as error:
            _log.error("job %s of %s failed: %s", job.job_id, job.model, error)
            await self._ended(job.job_id, error=str(error), code=job_error_code(error))
        except Exception as error:  # noqa: BLE001 - a defect must end this job by name, not the queue
            _log.exception("job %s of %s met a defect", job.job_id, job.model)
            await self._ended(job.job_id, error=f"internal error: {error!r}", code="internal_error")
        else:
            await self._ended(job.job_id, result=ended.result)
            for call in self.after_step:
                call(job.project, job.name)
        finally:
            self._unfinished[job.model] -= 1
        self._wake_followers(job.job_id)
        self._news.pop(job.job_id, None)  # a follower that hung up took nothing away

    async def _progress(self, job_id: str, phase: str, *, done: int = 0, total: int = 0) -> None:
        await self.store.progress(job_id, phase, done=done, total=total)
        self._wake_followers(job_id)

    async def _ended(
        self, job_id: str, *, result: TrainResultInfo | None = None, error: str = "", code: str = ""
    ) -> None:
        """Write down how a job ended; while the table takes nothing, those who ask are told all the same."""

        async def write() -> None:
            if result is not None:
                await self.store.finish(job_id, result)
            else:
                await self.store.fail(job_id, error, code)

        async def write_later() -> None:
            while job_id in self._untold:
                await asyncio.sleep(_AGAIN_SECONDS)
                with contextlib.suppress(DiskError, JobStoreError):
                    await write()
                    del self._untold[job_id]

        try:
            await write()
        except (DiskError, JobStoreError) as problem:
            _log.error("how job %s ended is written down later: %s", job_id, problem)
            kind: Literal["result", "error"] = "error" if result is None else "result"
            self._untold[job_id] = JobEvent(
                number=1, type=kind, result=result, error=error or None, error_code=code or None
            )
            task = asyncio.create_task(write_later())
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    def _wake_followers(self, job_id: str) -> None:
        news = self._news.get(job_id)
        if news is not None:
            news.set()


@dataclass(slots=True)
class _Outcome:
    """The outcome of a job so far."""

    result: TrainResultInfo | None = None
    attempts: int = 0
    """That failed with a worker."""


def _as_worker_error(error: Exception, expired: bool, deadline: float) -> WorkerError:
    if isinstance(error, WorkerError):
        return error
    what = (
        f"the job was not done within {deadline:g} s"
        if expired
        else str(error) or "a worker did not answer in time"
    )
    return WorkerStalledError(what)


@dataclass(frozen=True, kw_only=True)
class JobRunner:
    """Runs what `TrainingJobs` queues."""

    models: RegisteredModels
    served_models: ServedModels
    catalog: Catalog
    ledger: SampleLedger
    teachers: TeacherSettings
    in_use: InUse[Path]

    async def run(self, job: TrainingJob, progress: Progress) -> TrainResultInfo:
        """Raises subclasses of ARTError by name. After a worker failed it may be run again."""
        served = await self.served_models.ensure_served(self.models.get(job.project, job.name))
        async with served.its_turn():
            try:
                with self.in_use.using(_reference_of(job, served)), served.clock.part("prepare"):
                    target = self.catalog.served_as(job.project, job.name, served.model.base_model)
                    return await make_step_job(
                        job,
                        served,
                        progress,
                        ledger=self.ledger,
                        renderer=target.renderer,
                        max_length=target.max_context,
                        teachers=self.teachers,
                    ).run()
            except BaseException:
                # The trainer may hold a step that was never committed.
                served.workers.trainers.invalidate(served.model)
                raise
            finally:
                await served.workers.wake()

    async def worker_failed(self, job: TrainingJob, error: WorkerError) -> None:
        """An attempt failed with its worker: wait for the restart."""
        served = self.served_models.opened.get(job.model)
        if served is None:
            return
        try:
            await served.workers.wait_until_up()
        except ARTError as failure:
            _log.error("workers of %s did not come back: %s", served.workers.base.name, failure)


def make_step_job(
    job: TrainingJob,
    served: ServedModel,
    progress: Progress,
    *,
    ledger: SampleLedger,
    renderer: ChatRenderer,
    max_length: int,
    teachers: TeacherSettings,
) -> StepJob:
    """Makes the job of the kind that its request is of. max_length: tokens of the longest conversation that
    the model can see.
    """
    request = job.request
    shared: dict[str, Any] = {
        "job": job,
        "served": served,
        "progress": progress,
        "ledger": ledger,
        "renderer": renderer,
    }
    if not isinstance(request, SftJobRequest):
        return TrainJob(request=request, teachers=teachers, **shared)
    kind: type[SftJob] = SftJob
    if isinstance(request, ExtensionJobRequest):
        kind = load_extension(JOB, request.job)
    return kind(request=request, max_length=max_length, **shared)


def _reference_of(job: TrainingJob, served: ServedModel) -> Path | None:
    """The folder of another policy that the job reads; one that is not there, the job itself will name."""
    if not isinstance(job.request, TrainJobRequest | ExtensionJobRequest):
        return None
    try:
        folder = reference_folder(job.request.algorithm, served.checkpoints)
    except RequestError:
        return None
    return None if folder is None else Path(folder).resolve()

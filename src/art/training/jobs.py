"""Training steps as jobs:

run once, in order, in one thread; their events can be read again by a later request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from art.errors import ARTError, TrainingError
from art.samples.encode import decode_batch
from art.samples.types import LossEntries, TokenTree
from art.training.trainer import Trainer
from art.wire.training import TrainEvent, TrainRequest

LOG = logging.getLogger(__name__)


class Job:
    """One step. Its events are kept, so that a reader who lost the connection starts again from the first."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self._events: list[TrainEvent] = []
        self._news = asyncio.Event()

    @property
    def last(self) -> TrainEvent | None:
        return self._events[-1] if self._events else None

    @property
    def finished(self) -> bool:
        return self.last is not None and self.last.type != "progress"

    def publish(self, event: TrainEvent) -> None:
        """Called in the event loop's thread only."""
        self._events.append(event)
        self._news.set()
        self._news = asyncio.Event()

    async def events(self) -> AsyncIterator[TrainEvent]:
        """From the first event to the last. The step itself goes on when nobody reads."""
        at = 0
        while at < len(self._events) or not self.finished:
            if at == len(self._events):
                await self._news.wait()  # ends with the step; whoever reads has a deadline of its own
            yield self._events[at]
            at += 1


class Jobs:
    """The steps of each open model; only the newest of each is remembered."""

    def __init__(self, trainer: Trainer, thread: ThreadPoolExecutor) -> None:
        self._trainer, self._thread = trainer, thread
        self._jobs: dict[tuple[str, int, int], Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    async def start(self, body: bytes) -> Job:
        """The job of this batch: a new one, or the one that runs or ran for the same model, step, update and
        batch.

        Raises what `decode_batch` and `Trainer.check` raise, and TrainingError when another batch is being
        or was trained from this step.
        """
        loop = asyncio.get_running_loop()
        digest = hashlib.sha256(body).hexdigest()
        tree, entries, request = await asyncio.to_thread(decode_batch, body)
        key = (request.model, request.step, request.update)
        job = self._jobs.get(key)
        failed = job is not None and job.last is not None and job.last.type == "error"
        if job is not None and not failed:
            if job.digest != digest:
                raise TrainingError(
                    f"Step {request.step} of {request.model!r} is trained from another batch already. "
                    "A step is trained once; ask for the model's newest step and sample again."
                )
            return job
        self._trainer.check(tree, request, entries)
        self.forget(request.model)
        job = self._jobs[key] = Job(digest)
        task = loop.create_task(self._run(job, tree, entries, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def forget(self, model: str) -> None:
        """Drop the finished jobs of a model that was closed, opened again, or moved on."""
        self._jobs = {key: job for key, job in self._jobs.items() if key[0] != model or not job.finished}

    async def _run(self, job: Job, tree: TokenTree, entries: LossEntries, request: TrainRequest) -> None:
        loop = asyncio.get_running_loop()

        def progress(done: int, total: int) -> None:
            event = TrainEvent(type="progress", done=done, total=total)
            loop.call_soon_threadsafe(job.publish, event)

        try:
            metrics = await loop.run_in_executor(
                self._thread, self._trainer.train, tree, entries, request, progress
            )
        except (ARTError, RuntimeError, MemoryError) as error:  # RuntimeError: torch, out of memory included
            LOG.warning("Step %d of %s failed", request.step, request.model, exc_info=error)
            code = type(error).__name__ if isinstance(error, ARTError) else TrainingError.__name__
            event = TrainEvent(type="error", message=f"{error}", code=code)
        else:
            step = request.step + 1 if request.advance else request.step
            event = TrainEvent(type="result", step=step, metrics=metrics)
        job.publish(event)

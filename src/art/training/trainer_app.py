"""The HTTP face of a trainer, the routes of `art.wire.training`, and its training steps as jobs: run once, in
order, in one thread; their events can be read again by a later request.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from safetensors.numpy import save as save_arrays
from starlette.applications import Starlette
from starlette.authentication import AuthenticationBackend
from starlette.authentication import AuthenticationError as NoKeyError
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from art.batch.batch_types import LossEntries, TokenTree
from art.batch.encode import decode_batch
from art.errors import ARTError, AuthenticationError, RequestError, ServerError, TrainingError
from art.training.lora_product import NotSharedError
from art.training.trainer import AskedBatch, Trainer
from art.wire.json_lines import one_line
from art.wire.models import ErrorBody
from art.wire.records import Strict, flaws_without_values
from art.wire.training import (
    CloseRequest,
    FoundFolder,
    OpenReply,
    OpenRequest,
    ProbeReply,
    ProbeRequest,
    SaveReply,
    SaveRequest,
    ScoreReply,
    ScoreRequest,
    StepRequest,
    TokensRequest,
    TrainerConfig,
    TrainerHealth,
    TrainEvent,
    TrainRequest,
)

LOG = logging.getLogger(__name__)


class TrainerJob:
    """A batch. Its events are kept, so that a reader who lost the connection starts again from the first."""

    def __init__(self, request: TrainRequest, digest: str) -> None:
        self.request, self.digest = request, digest
        self._loop = asyncio.get_running_loop()
        self._events: list[TrainEvent] = []
        self._news = asyncio.Event()

    @property
    def last(self) -> TrainEvent | None:
        return self._events[-1] if self._events else None

    @property
    def finished(self) -> bool:
        return self.last is not None and self.last.type != "progress"

    def run(self, trainer: Trainer, batch: AskedBatch) -> None:
        """Train, in the thread of torch."""
        request = self.request
        try:
            metrics = trainer.train(*batch)
        except Exception as error:  # a defect, too: whoever reads the events waits for their end
            LOG.warning("Step %d of %s failed", request.step, request.model, exc_info=error)
            self._publish(TrainEvent(type="error", message=f"{error}", code=type(error).__name__))
        else:
            self.complete(metrics)

    def complete(self, metrics: dict[str, float]) -> None:
        """The batch was trained."""
        moves = self.request.gradient == "step" and self.request.advance
        step = self.request.step + 1 if moves else self.request.step
        self._publish(TrainEvent(type="result", step=step, metrics=metrics))

    def report(self, done: int, total: int) -> None:
        self._publish(TrainEvent(type="progress", done=done, total=total))

    def _publish(self, event: TrainEvent) -> None:
        self._loop.call_soon_threadsafe(self._append, event)

    def _append(self, event: TrainEvent) -> None:
        self._events.append(event)
        self._news.set()
        self._news = asyncio.Event()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yields the events as JSON, from the first to the last. The step itself continues without a
        reader.
        """
        at = 0
        while at < len(self._events) or not self.finished:
            if at == len(self._events):
                await self._news.wait()  # ends with the step; whoever reads has a deadline of its own
            yield one_line(self._events[at].model_dump_json()) + b"\n"
            at += 1


class WaitingJobs:
    """The batches that wait for the thread of torch, in their order."""

    def __init__(self, *, shared_passes: bool) -> None:
        self._shared_passes = shared_passes
        self._waiting: list[tuple[TrainerJob, AskedBatch]] = []
        self._lock = threading.Lock()

    def add(self, job: TrainerJob, tree: TokenTree, entries: LossEntries) -> None:
        """`run_next` must follow, in the thread of torch, for each job that is added."""
        with self._lock:
            self._waiting.append((job, AskedBatch(tree, entries, job.request, job.report)))

    def run_next(self, trainer: Trainer) -> None:
        """Trains the first batch, and with it those that can share its pass."""
        taken = self._take()
        if len(taken) > 1:
            try:
                found = trainer.train_together([batch for _, batch in taken])
            except NotSharedError as error:
                LOG.info("%d batches are computed one after the other: %s", len(taken), error)
            except Exception as error:  # a defect, too: each alone says whose it is, and no reader is left
                LOG.warning("%d batches are computed one after the other", len(taken), exc_info=error)
            else:
                for (job, _), metrics in zip(taken, found, strict=True):
                    job.complete(metrics)
                return
        for job, batch in taken:
            job.run(trainer, batch)

    def _take(self) -> list[tuple[TrainerJob, AskedBatch]]:
        """The first; and where it moves nothing, those behind it that do not either, one of each model."""
        with self._lock:
            taken: dict[str, tuple[TrainerJob, AskedBatch]] = {}
            for job, batch in list(self._waiting):
                alone = job.request.gradient == "step" or not self._shared_passes
                if not taken or not (alone or job.request.model in taken):
                    taken[job.request.model] = (job, batch)
                    self._waiting.remove((job, batch))
                if alone:
                    break
            return list(taken.values())


R = TypeVar("R")
S = TypeVar("S", bound=Strict)


class TrainerRoutes:
    """One handler per route. Everything that touches torch runs in `thread`, one call after the other."""

    def __init__(
        self,
        trainer: Future[Trainer],
        thread: ThreadPoolExecutor,
        config: TrainerConfig,
        rendezvous: int | None = None,
    ) -> None:
        self._loading, self._thread, self._config = trainer, thread, config
        self._rendezvous = rendezvous
        self._jobs: dict[tuple[str, int, int, str], TrainerJob] = {}
        """The jobs by model, step, update and, where nothing moves, the batch: several batches may have one
        place then. Only the newest of each model is remembered."""
        self._waiting = WaitingJobs(shared_passes=config.shared_passes)
        self._running: set[asyncio.Future[None]] = set()

    @property
    def _trainer(self) -> Trainer:
        """The trainer, which is there when its thread has loaded it."""
        return self._loading.result()

    async def health(self, request: Request) -> Response:
        config, health = self._config, TrainerHealth(base_model=self._config.base_model, device="", dtype="")
        if self._loading.done():
            trainer = self._trainer
            health.device, health.dtype = str(trainer.policy.device), str(trainer.policy.dtype)
            health.models = dict(trainer.steps)
        health.dtype = health.dtype.removeprefix("torch.")
        health.busy = bool(self._running) or not self._loading.done()
        health.rank = 0 if config.gang is None else config.gang.rank
        health.rendezvous = self._rendezvous
        return _reply(health)

    async def open(self, request: Request) -> Response:
        asked = await _parse(OpenRequest, request)
        checkpoint = Path(asked.checkpoint) if asked.checkpoint is not None else None

        def work() -> OpenReply:
            step = self._trainer.open(asked.model, asked.lora, seed=asked.seed, checkpoint=checkpoint)
            parameters = self._trainer.trainable_parameters(asked.model)
            return OpenReply(model=asked.model, step=step, trainable_parameters=parameters)

        reply = await self._in_thread(work)
        self._forget_jobs(asked.model)
        return _reply(reply)

    async def found(self, request: Request) -> Response:
        """Takes where this rank's machine has a folder that the leader will name by its own path."""
        folder = await _parse(FoundFolder, request)
        self._trainer.ranks.found[folder.leaders] = folder.own
        return JSONResponse({})

    async def train(self, request: Request) -> Response:
        """The events of a batch's job: a new one, or the one of the same model, step, update and batch.

        Raises what `decode_batch` and `Trainer.check` raise, and TrainingError when another batch is being
        or was trained from this step.
        """
        await asyncio.wrap_future(self._loading)
        body = await request.body()
        tree, entries, asked = await asyncio.to_thread(decode_batch, body)
        digest = hashlib.sha256(body).hexdigest()
        key = (asked.model, asked.step, asked.update, "" if asked.gradient == "step" else digest)
        job = self._jobs.get(key)
        if job is None or (job.last is not None and job.last.type == "error"):
            self._trainer.check(tree, asked, entries)
            self._forget_jobs(asked.model)
            job = self._jobs[key] = TrainerJob(asked, digest)
            self._waiting.add(job, tree, entries)
            running = asyncio.get_running_loop().run_in_executor(
                self._thread, self._waiting.run_next, self._trainer
            )
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        elif job.digest != digest:
            raise TrainingError(
                f"Step {asked.step} of {asked.model!r} is trained from another batch already. "
                "A step is trained once; ask for the model's newest step and sample again."
            )
        return StreamingResponse(job.lines(), media_type="application/x-ndjson")

    async def step(self, request: Request) -> Response:
        asked = await _parse(StepRequest, request)
        reply = await self._in_thread(lambda: self._trainer.step(asked))
        self._forget_jobs(asked.model)
        return _reply(reply)

    async def save(self, request: Request) -> Response:
        asked = await _parse(SaveRequest, request)

        def work() -> tuple[int, Callable[[], list[str]]]:
            step = self._trainer.steps[asked.model]
            return step, self._trainer.begin_save(asked.model, Path(asked.path))

        step, finish = await self._in_thread(work)
        files = await asyncio.to_thread(finish)  # waits for the disk, as no other model has to
        return _reply(SaveReply(step=step, files=files))

    async def score(self, request: Request) -> Response:
        asked = await _parse(ScoreRequest, request)

        def work() -> ScoreReply:
            logprobs = self._trainer.score(asked.model, asked.rows)
            return ScoreReply(step=self._trainer.steps[asked.model], logprobs=logprobs)

        return _reply(await self._in_thread(work))

    async def tokens(self, request: Request) -> Response:
        """The record of a step's loss entries. It waits for no step that is running."""
        await asyncio.wrap_future(self._loading)
        asked = await _parse(TokensRequest, request)
        columns = self._trainer.token_columns(asked.model, asked.step)
        body = await asyncio.to_thread(save_arrays, dict(columns))
        return Response(body, media_type="application/octet-stream")

    async def probe(self, request: Request) -> Response:
        asked = await _parse(ProbeRequest, request)

        def work() -> ProbeReply:
            return self._trainer.probe(asked.lora, Path(asked.path), asked.rows, seed=asked.seed)

        return _reply(await self._in_thread(work))

    async def close(self, request: Request) -> Response:
        asked = await _parse(CloseRequest, request)
        await self._in_thread(lambda: self._trainer.close(asked.model))
        self._forget_jobs(asked.model)
        return JSONResponse({})

    def _forget_jobs(self, model: str) -> None:
        """Drop the finished jobs of a model that was closed, opened again, or moved on."""
        self._jobs = {key: job for key, job in self._jobs.items() if key[0] != model or not job.finished}

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def make_app(
    trainer: Future[Trainer],
    thread: ThreadPoolExecutor,
    config: TrainerConfig,
    rendezvous: int | None = None,
) -> Starlette:
    """The application; every route asks for the configuration's key. A rank that is not the leader has its
    health, and is told where its machine has folders: all else it hears from the leader.

    rendezvous: the port at which other ranks meet this one.
    """
    face = TrainerRoutes(trainer, thread, config, rendezvous)
    follows = config.gang is not None and config.gang.rank > 0
    calls = (face.open, face.train, face.tokens, face.step, face.save, face.score, face.probe, face.close)
    posted = (face.found,) if follows else calls
    return Starlette(
        routes=[
            Route("/health", face.health, methods=["GET"]),
            *(Route(f"/{handler.__name__}", handler, methods=["POST"]) for handler in posted),
        ],
        middleware=[
            Middleware(AuthenticationMiddleware, backend=TrainerKeyCheck(config.key), on_error=_refuse_key)
        ],
        exception_handlers={ARTError: _refuse, Exception: _report_defect},
    )


class TrainerKeyCheck(AuthenticationBackend):
    """Refuses a wrong key."""

    def __init__(self, key: str) -> None:
        self._expected = f"Bearer {key}".encode()

    async def authenticate(self, conn: HTTPConnection) -> None:
        if not hmac.compare_digest(conn.headers.get("authorization", "").encode(), self._expected):
            raise NoKeyError


def _refuse_key(_: HTTPConnection, error: NoKeyError) -> Response:
    return _refusal(AuthenticationError("The trainer's key is missing or wrong.", status=401))


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, ARTError)
    return _refusal(error)


async def _report_defect(_: Request, error: Exception) -> Response:
    """Starlette raises the error again behind this reply, so the log has its traceback."""
    body = ErrorBody(message=f"{error}", type=type(error).__name__, code=None, retry_after=None)
    return JSONResponse({"error": body.model_dump()}, status_code=500)


async def _parse(kind: type[S], request: Request) -> S:
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise RequestError(f"{kind.__name__}: {flaws_without_values(error)}", status=400) from error


def _reply(message: Strict) -> Response:
    return Response(message.model_dump_json(), media_type="application/json")


def _refusal(error: ARTError) -> Response:
    """`type` is the class in `art.errors`, so that the server raises it again."""
    status, code = 400, None
    if isinstance(error, ServerError):
        status, code = error.status, error.code
    elif isinstance(error, TrainingError):
        status, code = 409, "stale_step"
    body = ErrorBody(message=f"{error}", type=type(error).__name__, code=code, retry_after=None)
    return JSONResponse({"error": body.model_dump()}, status_code=status)

"""The HTTP face of a trainer, the routes of `art.wire.training`, and its training steps as jobs: run once, in
order, in one thread; their events can be read again by a later request.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from art.batch.batch_types import LossEntries, TokenTree
from art.batch.encode import decode_batch
from art.errors import ARTError, AuthenticationError, RequestError, ServerError, TrainingError
from art.training.trainer import Trainer
from art.wire.models import ErrorBody
from art.wire.records import Strict, flaws_without_values
from art.wire.training import (
    CloseRequest,
    OpenReply,
    OpenRequest,
    ProbeReply,
    ProbeRequest,
    SaveReply,
    SaveRequest,
    ScoreReply,
    ScoreRequest,
    TrainerConfig,
    TrainerHealth,
    TrainEvent,
    TrainRequest,
)

LOG = logging.getLogger(__name__)


class TrainerJob:
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


class TrainerJobs:
    """The steps of each open model; only the newest of each is remembered."""

    def __init__(self, trainer: Trainer, thread: ThreadPoolExecutor) -> None:
        self._trainer, self._thread = trainer, thread
        self._jobs: dict[tuple[str, int, int], TrainerJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    async def start(self, body: bytes) -> TrainerJob:
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
        job = self._jobs[key] = TrainerJob(digest)
        task = loop.create_task(self._run(job, tree, entries, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def forget(self, model: str) -> None:
        """Drop the finished jobs of a model that was closed, opened again, or moved on."""
        self._jobs = {key: job for key, job in self._jobs.items() if key[0] != model or not job.finished}

    async def _run(
        self, job: TrainerJob, tree: TokenTree, entries: LossEntries, request: TrainRequest
    ) -> None:
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


R = TypeVar("R")
S = TypeVar("S", bound=Strict)
Handler = Callable[[Request], Awaitable[Response]]


class TrainerRoutes:
    """One handler per route. Everything that touches torch runs in `thread`, one call after the other."""

    def __init__(self, trainer: Trainer, thread: ThreadPoolExecutor, config: TrainerConfig) -> None:
        self._trainer, self._thread, self._config = trainer, thread, config
        self._jobs = TrainerJobs(trainer, thread)

    async def health(self, request: Request) -> Response:
        return _reply(
            TrainerHealth(
                base_model=self._config.base_model,
                device=str(self._trainer.policy.device),
                dtype=str(self._trainer.policy.dtype).removeprefix("torch."),
                models=dict(self._trainer.steps),
                busy=self._jobs.busy,
            )
        )

    async def open(self, request: Request) -> Response:
        asked = await _parse(OpenRequest, request)
        checkpoint = Path(asked.checkpoint) if asked.checkpoint is not None else None

        def work() -> OpenReply:
            step = self._trainer.open(asked.model, asked.lora, seed=asked.seed, checkpoint=checkpoint)
            parameters = self._trainer.trainable_parameters(asked.model)
            return OpenReply(model=asked.model, step=step, trainable_parameters=parameters)

        reply = await self._in_thread(work)
        self._jobs.forget(asked.model)
        return _reply(reply)

    async def train(self, request: Request) -> Response:
        job = await self._jobs.start(await request.body())

        async def lines() -> AsyncIterator[str]:
            async for event in job.events():
                yield event.model_dump_json() + "\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def save(self, request: Request) -> Response:
        asked = await _parse(SaveRequest, request)

        def work() -> SaveReply:
            files = self._trainer.save(asked.model, Path(asked.path))
            return SaveReply(step=self._trainer.steps[asked.model], files=files)

        return _reply(await self._in_thread(work))

    async def score(self, request: Request) -> Response:
        asked = await _parse(ScoreRequest, request)

        def work() -> ScoreReply:
            logprobs = self._trainer.score(asked.model, asked.rows)
            return ScoreReply(step=self._trainer.steps[asked.model], logprobs=logprobs)

        return _reply(await self._in_thread(work))

    async def probe(self, request: Request) -> Response:
        asked = await _parse(ProbeRequest, request)

        def work() -> ProbeReply:
            return self._trainer.probe(asked.lora, Path(asked.path), asked.rows, seed=asked.seed)

        return _reply(await self._in_thread(work))

    async def close(self, request: Request) -> Response:
        asked = await _parse(CloseRequest, request)
        await self._in_thread(lambda: self._trainer.close(asked.model))
        self._jobs.forget(asked.model)
        return JSONResponse({})

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def make_app(trainer: Trainer, thread: ThreadPoolExecutor, config: TrainerConfig) -> Starlette:
    """The application; every route asks for the configuration's key."""
    face = TrainerRoutes(trainer, thread, config)
    routes = [Route("/health", _guarded(face.health, config.key), methods=["GET"])]
    for handler in (face.open, face.train, face.save, face.score, face.probe, face.close):
        routes.append(Route(f"/{handler.__name__}", _guarded(handler, config.key), methods=["POST"]))
    return Starlette(routes=routes)


def _guarded(handler: Handler, key: str) -> Handler:
    """Refuse a wrong key; turn an error of ours into its JSON."""
    expected = f"Bearer {key}".encode()

    async def guarded(request: Request) -> Response:
        try:
            sent = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(sent, expected):
                raise AuthenticationError("The trainer's key is missing or wrong.", status=401)
            return await handler(request)
        except ARTError as error:
            return _refusal(error)

    return guarded


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

"""The HTTP face of a trainer: the routes of `art.wire.training`."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from art.errors import ARTError, AuthenticationError, RequestError, ServerError, TrainingError
from art.training.jobs import Jobs
from art.training.trainer import Trainer
from art.wire.flaws import flaws_without_values
from art.wire.models import ErrorBody
from art.wire.strict import Strict
from art.wire.trainer_start import TrainerConfig
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
    TrainerHealth,
)

R = TypeVar("R")
S = TypeVar("S", bound=Strict)
Handler = Callable[[Request], Awaitable[Response]]


class Face:
    """One handler per route. Everything that touches torch runs in `thread`, one call after the other."""

    def __init__(self, trainer: Trainer, thread: ThreadPoolExecutor, config: TrainerConfig) -> None:
        self._trainer, self._thread, self._config = trainer, thread, config
        self._jobs = Jobs(trainer, thread)

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
    face = Face(trainer, thread, config)
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

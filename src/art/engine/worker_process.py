"""A worker process around one engine: start line, ready line, then its routes until the parent is gone.

All routes need the bearer key; a failed call answers an `ErrorBody`. Completions share one WebSocket: frames
of requests come up, frames of deltas go down. All deltas that one step of the engine produced share a frame,
so that 200 running requests cost one frame a step.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic

import orjson
import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from art.engine.frames import news_message, read_request
from art.engine.protocol import C, Delta, ServedEngine
from art.errors import ARTError, AuthenticationError, RequestError
from art.process.resources import listen, resume_collector
from art.wire.engine import (
    CancelMessage,
    EngineErrorBody,
    EngineScoreReply,
    EngineScoreRequest,
    GenerateMessage,
    LoadAdapter,
    UnloadAdapter,
    WorkerReady,
    WorkerStart,
    to_body,
)
from art.wire.records import flaws_without_values


async def serve_generate(engine: ServedEngine[C], socket: WebSocket) -> None:
    """Serve one accepted connection until it closes; what still runs then is cancelled."""
    streams = CompletionStreams(engine)
    sender = asyncio.create_task(streams.send_to(socket))
    try:
        while True:
            frame = await socket.receive()
            if frame["type"] == "websocket.disconnect":
                return
            streams.receive(frame.get("bytes") or frame.get("text") or "")
    finally:
        sender.cancel()
        streams.cancel_all()


class CompletionStreams(Generic[C]):
    """The requests of one connection, by id."""

    def __init__(self, engine: ServedEngine[C]) -> None:
        self.engine = engine
        self.calls: dict[str, C] = {}
        self.outbox: list[dict[str, Any]] = []
        self.ready = asyncio.Event()

    def receive(self, frame: bytes | str) -> None:
        """Take a frame; what is wrong with a message is answered under its id."""
        try:
            messages = orjson.loads(frame)
        except orjson.JSONDecodeError:
            messages = None
        for message in messages if isinstance(messages, list) else [messages]:
            request_id = str(message.get("id", "")) if isinstance(message, dict) else ""
            try:
                self._on_message(message)
            except ValidationError as error:
                problem = f"malformed message: {flaws_without_values(error)}"
                self._queue_message(request_id, RequestError(problem, status=400, code="bad_message"))
            except ARTError as error:
                self._queue_message(request_id, error)

    async def send_to(self, socket: WebSocket) -> None:
        """Send what has come together since the last frame, until cancelled."""
        while True:
            await self.ready.wait()
            self.ready.clear()
            messages, self.outbox = self.outbox, []
            await socket.send_bytes(orjson.dumps(messages))

    def cancel_all(self) -> None:
        for call in self.calls.values():
            self.engine.cancel(call)
        self.calls.clear()

    def _on_message(self, message: object) -> None:
        if isinstance(message, dict) and "cancel" in message:
            call = self.calls.pop(CancelMessage.model_validate(message).cancel, None)
            if call is not None:
                self.engine.cancel(call)
            return
        body = GenerateMessage.model_validate(message)
        if body.id in self.calls:
            raise RequestError(
                f"a request with the id {body.id!r} is running", status=400, code="bad_message"
            )
        request = read_request(body)
        self.calls[body.id] = self.engine.begin(request, lambda news: self._send_delta(body.id, news))

    def _send_delta(self, request_id: str, news: Delta | ARTError) -> None:
        if isinstance(news, ARTError) or news.finish_reason is not None:
            self.calls.pop(request_id, None)
        self._queue_message(request_id, news)

    def _queue_message(self, request_id: str, news: Delta | ARTError) -> None:
        self.outbox.append(news_message(request_id, news))
        self.ready.set()


Handler = Callable[[Request], Awaitable[BaseModel | None]]


def make_app(engine: ServedEngine[C], key: str) -> Starlette:
    """The application. `key` is what every caller must send as `Authorization: Bearer <key>`."""

    async def health(request: Request) -> BaseModel:
        return engine.health()

    async def load_adapter(request: Request) -> None:
        body = LoadAdapter.model_validate_json(await request.body())
        await engine.load_adapter(body.name, Path(body.path))

    async def unload_adapter(request: Request) -> None:
        body = UnloadAdapter.model_validate_json(await request.body())
        await engine.unload_adapter(body.name)

    async def score(request: Request) -> BaseModel:
        body = EngineScoreRequest.model_validate_json(await request.body())
        if body.most is None:
            return EngineScoreReply(logprobs=await engine.score(body.adapter, body.rows))
        ranked = await engine.rank(body.adapter, body.rows, body.most, body.alternatives)
        return EngineScoreReply(
            logprobs=[list(one.logprobs) for one in ranked],
            tops=[[list(top) for top in one.tops] for one in ranked],
            named=[value for one in ranked for value in one.named],
            drawn=[list(drawn) for one in ranked for drawn in one.drawn],
        )

    async def sleep(request: Request) -> None:
        await engine.sleep()

    async def wake(request: Request) -> None:
        await engine.wake()

    async def generate(socket: WebSocket) -> None:
        if not _allowed(socket, key):
            await socket.close(code=4401, reason="wrong key")
            return
        await socket.accept()
        await serve_generate(engine, socket)

    posts: dict[str, Handler] = {
        "/load_adapter": load_adapter,
        "/unload_adapter": unload_adapter,
        "/score": score,
        "/sleep": sleep,
        "/wake": wake,
    }
    return Starlette(
        routes=[
            Route("/health", _endpoint(health, key), methods=["GET"]),
            *(Route(path, _endpoint(handler, key), methods=["POST"]) for path, handler in posts.items()),
            WebSocketRoute("/generate", generate),
        ]
    )


def _endpoint(handler: Handler, key: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            if not _allowed(request, key):
                raise AuthenticationError("no key was sent, or a wrong one", status=401, code="invalid_key")
            reply = await handler(request)
        except ValidationError as error:
            unfit = RequestError(
                f"malformed body: {flaws_without_values(error)}", status=400, code="bad_body"
            )
            return _json(to_body(unfit), 400)
        except ARTError as error:
            body = to_body(error)
            return _json(body, body.status)
        return _json(reply, 200)

    return endpoint


def _json(body: BaseModel | EngineErrorBody | None, status: int) -> Response:
    content = orjson.dumps(body.model_dump() if body is not None else {})
    return Response(content, status_code=status, media_type="application/json")


def _allowed(connection: HTTPConnection, key: str) -> bool:
    sent = connection.headers.get("authorization", "")
    return secrets.compare_digest(sent.encode(), f"Bearer {key}".encode())


_IDLE_SECONDS = 60
"""An idle connection is kept for longer than a client keeps it (5 s). Else a health check of a busy server
may meet one that is just being closed, and a live worker counts as broken."""
GRACE_SECONDS = 5.0
"""The limit in seconds to stop in order after the parent is gone."""
StartEngine = Callable[[WorkerStart], Awaitable[ServedEngine[Any]]]


def run_worker(start_engine: StartEngine) -> int:
    """Serve the engine that the start line describes until standard input ends. Returns the exit code."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    # The supervisor asks a stuck worker for its stacks with this signal.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        start = WorkerStart.model_validate_json(sys.stdin.readline())
    except ValidationError as error:
        # Without the input: it may hold the key.
        _write_ready(
            WorkerReady(ready=False, error=f"the start line is unfit: {flaws_without_values(error)}")
        )
        return 2
    try:
        return asyncio.run(_serve(start, start_engine))
    except ARTError as error:
        _write_ready(WorkerReady(ready=False, error=str(error)))
        return 1


async def _serve(start: WorkerStart, start_engine: StartEngine) -> int:
    engine = await start_engine(start)
    resume_collector()
    listener = listen(start.host, start.port)
    config = uvicorn.Config(
        make_app(engine, start.key),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_max_size=1 << 28,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=_IDLE_SECONDS,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=_stop_with_parent, args=(server,), daemon=True).start()
    _write_ready(WorkerReady(ready=True, port=listener.getsockname()[1]))
    await server.serve(sockets=[listener])
    await engine.close()
    return 0


def _stop_with_parent(server: uvicorn.Server) -> None:
    """Standard input ends when the parent does, however it ended."""
    while sys.stdin.buffer.read(1 << 16):
        pass
    server.should_exit = True
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _write_ready(ready: WorkerReady) -> None:
    sys.stdout.buffer.write(orjson.dumps(ready.model_dump()) + b"\n")
    sys.stdout.buffer.flush()

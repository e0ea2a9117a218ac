"""The worker's routes over one engine. All need the bearer key; a failed call gets an `EngineErrorBody`."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from art.engine.served import C, ServedEngine
from art.engine.worker_streams import serve_generate
from art.errors import ARTError, AuthenticationError, RequestError
from art.wire.engine import (
    EngineErrorBody,
    EngineScoreReply,
    EngineScoreRequest,
    LoadAdapter,
    UnloadAdapter,
    to_body,
)
from art.wire.flaws import flaws_without_values

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
        ranked = await engine.rank(body.adapter, body.rows, body.most)
        return EngineScoreReply(
            logprobs=[list(one.logprobs) for one in ranked],
            tops=[[list(top) for top in one.tops] for one in ranked],
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

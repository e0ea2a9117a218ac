"""A shelf on the network: what it has is read under one key, what it is to get is ordered under another one.

    GET  /shelf/{digest}/manifest        the canonical manifest
    GET  /shelf/{digest}/files/{name}    a file of it, from `Range: bytes=N-` on
    POST /fetch                          FetchOrder -> FetchedCopy       a node's shelf only
    POST /adopt                          AdoptOrder -> AdoptedCopy       a node's shelf only

Nodes get each other's reading keys, and nothing else of each other. An order is answered when it is done: a
space every few seconds says that the node lives, then comes the JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx
import uvicorn
from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from art.errors import (
    ARTError,
    AuthenticationError,
    ConfigurationError,
    DeadlineError,
    NodeLostError,
    NotFoundError,
    RequestError,
    StorageError,
    WorkerDiedError,
    WorkerStalledError,
)
from art.process.resources import listen, no_tls
from art.wire.engine import EngineErrorBody, to_body, to_error
from art.wire.records import Strict, flaws_without_values
from art_extensions.cluster.folder_manifest import canonical_json
from art_extensions.cluster.shelf import Shelf
from art_extensions.cluster.sources import CHUNK, Source, run_to_end

_SIGN_S = 5.0
"""Seconds between two signs of life of an order."""
_SILENCE_S = 60.0
"""Seconds without a sign of life after which a node counts as gone."""
_MOST_BODY = 1 << 20
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


class FetchOrder(Strict):
    """POST /fetch"""

    digest: str
    sources: list[Source]
    hold: bool = False
    """Whether the copy stays for as long as the shelf, and is never evicted as the least recently used."""


class FetchedCopy(Strict):
    """Reply of POST /fetch"""

    path: str
    """The copy's folder on the node."""


class AdoptOrder(Strict):
    """POST /adopt: a worker wrote a folder in the node's `written`."""

    path: str


class AdoptedCopy(Strict):
    """Reply of POST /adopt"""

    digest: str


class ShelfAddress(Strict):
    """All that the server needs to reach a node's shelf. It has keys: neither for a log nor for a file."""

    url: str
    read_key: str = Field(repr=False)
    """The key of those that may read its copies."""
    order_key: str = Field(repr=False)
    """The key of orders, which the server alone has."""
    written: str
    """The folder on the node in which its workers write."""

    @property
    def source(self) -> Source:
        """Returns the shelf as a source of copies for others."""
        return Source(url=self.url, key=self.read_key)


R = TypeVar("R", bound=Strict)
Handler = Callable[[Request], Awaitable[Response]]


def make_shelf_app(shelf: Shelf, read_key: str, order_key: str | None) -> Starlette:
    """The application. order_key: None where nobody gives orders, as on the server."""

    async def manifest(request: Request) -> Response:
        found = await shelf.manifest(request.path_params["digest"])
        return Response(canonical_json(found), media_type="application/json")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        descriptor, entry = await shelf.open_file(request.path_params["digest"], name)
        return _FileReply(descriptor, entry.size, request.headers.get("range"))

    async def fetch(request: Request) -> Response:
        order = FetchOrder.model_validate_json(await _read_body(request))

        async def work() -> FetchedCopy:
            return FetchedCopy(path=str(await shelf.fetch(order.digest, order.sources, hold=order.hold)))

        return StreamingResponse(_answer(work), media_type="application/json")

    async def adopt(request: Request) -> Response:
        order = AdoptOrder.model_validate_json(await _read_body(request))

        async def work() -> AdoptedCopy:
            return AdoptedCopy(digest=await shelf.adopt(Path(order.path)))

        return StreamingResponse(_answer(work), media_type="application/json")

    routes = [
        Route("/shelf/{digest}/manifest", guard_route(manifest, read_key), methods=["GET"]),
        Route("/shelf/{digest}/files/{name:path}", guard_route(file, read_key), methods=["GET"]),
    ]
    if order_key is not None:
        routes += [
            Route("/fetch", guard_route(fetch, order_key), methods=["POST"]),
            Route("/adopt", guard_route(adopt, order_key), methods=["POST"]),
        ]
    return Starlette(routes=routes)


def guard_route(handler: Handler, key: str) -> Handler:
    """Returns a handler that asks for the key first, and answers errors of ours as bodies."""

    async def endpoint(request: Request) -> Response:
        try:
            sent = request.headers.get("authorization", "")
            if not secrets.compare_digest(sent.encode(), f"Bearer {key}".encode()):
                raise AuthenticationError("no key was sent, or a wrong one", status=401, code="invalid_key")
            return await handler(request)
        except ValidationError as error:
            words = f"malformed body: {flaws_without_values(error)}"
            return _error_reply(RequestError(words, status=400, code="bad_body"))
        except StorageError as error:  # no digest, or the like
            return _error_reply(NotFoundError(str(error), status=404, code="no_copy"))
        except ARTError as error:
            return _error_reply(error)

    return endpoint


def _error_reply(error: ARTError) -> Response:
    body = to_body(error)
    return Response(body.model_dump_json(), status_code=body.status, media_type="application/json")


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY:
            raise RequestError(f"an order has at most {_MOST_BODY} bytes", status=413, code="too_large")
    return bytes(body)


async def _answer(work: Callable[[], Awaitable[Strict]]) -> AsyncIterator[bytes]:
    """Signs of life, then the result or an `EngineErrorBody` in `error`. A fetch goes on without a reader."""
    task = asyncio.ensure_future(work())
    try:
        while not (await asyncio.wait([task], timeout=_SIGN_S))[0]:
            yield b" "
        yield task.result().model_dump_json().encode()
    except ARTError as error:
        yield b'{"error":' + to_body(error).model_dump_json().encode() + b"}"
    finally:
        task.cancel()


class _FileReply(StreamingResponse):
    """A file from where it is asked for. Other kinds of ranges give all of it."""

    def __init__(self, descriptor: int, size: int, asked: str | None) -> None:
        """Takes the descriptor, and closes it in the end."""
        self._descriptor = descriptor
        found = _RANGE.fullmatch(asked or "")
        start = int(found[1]) if found else 0
        end = min(size, int(found[2]) + 1) if found and found[2] else size
        status, headers = 200, {"Accept-Ranges": "bytes"}
        if found and start >= end:
            start = end = 0
            status, headers["Content-Range"] = 416, f"bytes */{size}"
        elif found:
            status, headers["Content-Range"] = 206, f"bytes {start}-{end - 1}/{size}"
        headers["Content-Length"] = str(end - start)
        super().__init__(
            self._read(start, end),
            status_code=status,
            headers=headers,
            media_type="application/octet-stream",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._descriptor)

    async def _read(self, start: int, end: int) -> AsyncIterator[bytes]:
        while start < end:
            chunk = await run_to_end(os.pread, self._descriptor, min(CHUNK, end - start), start)
            if not chunk:  # it was cut short: the reader sees too few bytes
                return
            start += len(chunk)
            yield chunk


class QuietServer(uvicorn.Server):
    """Leaves the signals of its process to whoever has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ShelfServer:
    """A shelf that is served, in this process's event loop. Make one with `await ShelfServer.start(...)`."""

    def __init__(self, server: uvicorn.Server, task: asyncio.Task[None], address: ShelfAddress) -> None:
        self.address = address
        self._server = server
        self._task = task

    @classmethod
    async def start(
        cls, shelf: Shelf, host: str, *, port: int = 0, takes_orders: bool, deadline: float = 30.0
    ) -> ShelfServer:
        """Serves at `host`, the address by which the others reach this machine; port 0: a free one.

        takes_orders: a node's shelf fetches what the server tells it to. Raises ConfigurationError (the
        address is not of this machine, or taken), DeadlineError.
        """
        read_key, order_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        try:
            listener = listen(host, port)
        except OSError as error:
            raise ConfigurationError(
                f"the shelf cannot listen on {host}:{port} ({error}): name an address of this machine"
            ) from error
        name = f"[{host}]" if ":" in host else host
        address = ShelfAddress(
            url=f"http://{name}:{listener.getsockname()[1]}",
            read_key=read_key,
            order_key=order_key if takes_orders else "",
            written=str(shelf.copies.written),
        )
        app = make_shelf_app(shelf, read_key, order_key if takes_orders else None)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        server = QuietServer(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        started = cls(server, task, address)
        try:
            async with asyncio.timeout(deadline):
                await started._wait_until_served()
        except BaseException as error:
            await started.stop()
            if isinstance(error, TimeoutError):
                raise DeadlineError(f"the shelf did not serve at {address.url} in {deadline:g} s") from error
            raise
        return started

    async def _wait_until_served(self) -> None:
        while True:
            if self._server.started:
                return
            if self._task.done():
                self._task.result()
                raise DeadlineError(f"the shelf at {self.address.url} ended at once")
            await asyncio.sleep(0.01)

    async def stop(self, deadline: float = 10.0) -> None:
        """Ends it; what is still being read then is cut off. Calling it twice is allowed."""
        self._server.should_exit = True
        if not (await asyncio.wait([self._task], timeout=deadline))[0]:
            self._server.force_exit = True
            self._task.cancel()
            await asyncio.wait([self._task], timeout=deadline)


class NodeShelf:
    """A node's shelf as the server sees it. Close it."""

    def __init__(self, address: ShelfAddress) -> None:
        self.address = address
        self._http = httpx.AsyncClient(
            base_url=address.url,
            headers={"Authorization": f"Bearer {address.order_key}"},
            timeout=httpx.Timeout(_SILENCE_S, connect=10.0),
            trust_env=False,
            verify=no_tls(),
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def fetch(self, digest: str, sources: list[Source], *, hold: bool = False) -> Path:
        """The path on the node of its copy. Raises what `Shelf.fetch` raises there, WorkerError."""
        order = FetchOrder(digest=digest, sources=sources, hold=hold)
        reply = await self._order("/fetch", order, FetchedCopy)
        return Path(reply.path)

    async def adopt(self, path: Path) -> str:
        """The digest of what a worker wrote. Raises what `Shelf.adopt` raises on the node, WorkerError."""
        return (await self._order("/adopt", AdoptOrder(path=str(path)), AdoptedCopy)).digest

    async def _order(self, route: str, order: Strict, kind: type[R]) -> R:
        if self._http.is_closed:
            raise WorkerDiedError(f"the node's shelf at {self.address.url} is gone with its worker")
        try:
            reply = await self._http.post(route, content=order.model_dump_json())
        except httpx.TimeoutException as error:
            raise WorkerStalledError(
                f"the node's shelf at {self.address.url} gave no sign of life for {_SILENCE_S:g} s"
            ) from error
        except httpx.HTTPError as error:
            raise NodeLostError(
                f"the node's shelf at {self.address.url} is gone ({type(error).__name__})"
            ) from error
        content = reply.content.lstrip()
        try:
            if reply.status_code != 200:
                raise to_error(EngineErrorBody.model_validate_json(content))
            if content.startswith(b'{"error":'):
                raise to_error(_OrderFailure.model_validate_json(content).error)
            return kind.model_validate_json(content)
        except ValidationError as error:
            raise WorkerDiedError(
                f"the node's shelf at {self.address.url} answered {route} with status {reply.status_code}, "
                "and not as a shelf does"
            ) from error


class _OrderFailure(Strict):
    error: EngineErrorBody

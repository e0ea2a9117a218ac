"""A gateway without workers: it samples by itself what it can, and passes everything else to the controller.

POST of `SAMPLED`                                           here, by the engines of `followed.py`
the same in a scoped rollout                                the controller, which keeps its texts
models of engines that are not reached from here            the controller
everything else: models, jobs, rollouts, checkpoints        the controller
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import orjson

from art.errors import ARTError, AuthenticationError, ServerError, WorkerDiedError
from art.server.http import BodyMemory, BodyUse, Receive, Scope, Send, receive_in_time, send_error
from art.server.tenancy import Tenant
from art.server.tenants import KeyCheck
from art.wire.rollouts import RAW_ROLLOUT_HEADER
from art_extensions.postgres.database import PostgresDatabase
from art_extensions.postgres.followed import ServedFollower

_log = logging.getLogger(__name__)

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

SAMPLED = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/inference/v1/generate"})
_HERE = frozenset({"/", "/health", "/metrics"})
_HOPS = frozenset(b"host connection keep-alive transfer-encoding upgrade te trailer".split())
"""Headers of one connection."""
_READ_SECONDS = 3600.0
"""Seconds without a byte of an answer: a completion may take long; streams have keep-alive lines."""
_CONNECT_SECONDS = 5.0
_AWAY_SECONDS = 20.0
"""Seconds that a request waits for the next controller."""
_AGAIN_SECONDS = 0.2
_READING = frozenset({"GET", "HEAD"})
_REMEMBERED = 10_000
"""Rollouts of which is known that they are scoped: that never changes."""


class GatewayFront:
    """The ASGI application of a gateway."""

    def __init__(
        self,
        app: Application,
        *,
        keys: KeyCheck,
        follower: ServedFollower,
        database: PostgresDatabase,
        largest_body: int,
        bodies: BodyMemory,
    ) -> None:
        """bodies: those that the application counts, too."""
        self._app, self._keys, self._follower, self._database = app, keys, follower, database
        self._largest, self._bodies = largest_body, bodies
        self._scoped: OrderedDict[tuple[Tenant, str], None] = OrderedDict()
        timeout = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http" or scope["path"] in _HERE:
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
        try:
            here = scope["path"] in SAMPLED and scope["method"] == "POST" and await self._is_ours(scope, body)
        except AuthenticationError:
            here = True  # the application refuses it, in the words of its dialect
        except ARTError as error:
            await send_error(send, error, None)
            return
        if here:
            await self._app(scope, body.receive, send)
        else:
            await self._pass_on(scope, body, send)

    async def close(self) -> None:
        """Ends the connections to the controller."""
        await self._http.aclose()

    async def _is_ours(self, scope: Scope, body: _Body) -> bool:
        """Raises: AuthenticationError, LedgerError, OverloadedError, RequestError (408)."""
        asker = self._keys.require(scope)
        if asker.rollout_id is not None:
            return False
        rollout = next((value for name, value in scope["headers"] if name == RAW_ROLLOUT_HEADER), None)
        if rollout is not None and await self._is_scoped(asker.tenant, rollout.decode("latin-1")):
            return False
        with self._bodies.use(asker.tenant) as use:
            complete = await body.read(self._largest, use)
        if not complete:
            return True  # too large, or broken off: the application says so
        try:
            model = orjson.loads(body.content).get("model")
        except (orjson.JSONDecodeError, AttributeError):
            return True
        return not isinstance(model, str) or self._follower.is_sampled_here(model, asker.tenant)

    async def _is_scoped(self, tenant: Tenant, rollout_id: str) -> bool:
        known = (tenant, rollout_id)
        if known in self._scoped:
            return True
        query = "SELECT 1 FROM rollouts WHERE tenant = $1 AND rollout_id = $2"
        if not await self._database.rows(query, tenant or "", rollout_id):
            return False
        self._scoped[known] = None
        if len(self._scoped) > _REMEMBERED:
            self._scoped.popitem(last=False)
        return True

    async def _pass_on(self, scope: Scope, body: _Body, send: Send) -> None:
        """Ask the controller; a client that goes away ends that, too."""
        if not _has_body(scope):
            await body.receive()  # its end, behind which a disconnection is told
        asking = asyncio.ensure_future(self._ask(scope, body, send))
        gone = asyncio.ensure_future(body.wait_until_gone())
        try:
            await asyncio.wait([asking, gone], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
        finally:
            for task in (asking, gone):
                task.cancel()
            await asyncio.gather(asking, gone, return_exceptions=True)

    async def _ask(self, scope: Scope, body: _Body, send: Send) -> None:
        """Waits a while for a controller that is away, where asking twice does no harm."""
        deadline = asyncio.get_running_loop().time() + _AWAY_SECONDS
        while True:
            try:
                async with await self._connect(scope, body) as reply:
                    await _send_reply(reply, send)
                return
            except httpx.TransportError as error:
                harmless = isinstance(error, httpx.ConnectError) or scope["method"] in _READING
                if not harmless or asyncio.get_running_loop().time() > deadline:
                    _log.warning("the controller does not answer: %s", error)
                    await send_error(send, _away(), None)
                    return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _connect(self, scope: Scope, body: _Body) -> AbstractAsyncContextManager[httpx.Response]:
        if self._follower.controller is None:
            raise httpx.ConnectError("no server is the controller")
        raw = scope.get("raw_path") or scope["path"].encode()
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOPS]
        url = self._follower.controller + (raw + query).decode("latin-1")
        content = body.chunks() if _has_body(scope) else None
        return self._http.stream(scope["method"], url, headers=headers, content=content)


async def _send_reply(reply: httpx.Response, send: Send) -> None:
    """A reply that breaks off is broken off here, too: it has begun."""
    headers = [(name.lower(), value) for name, value in reply.headers.raw]
    forwarded = [(name, value) for name, value in headers if name not in _HOPS]
    await send({"type": "http.response.start", "status": reply.status_code, "headers": forwarded})
    try:
        async for chunk in reply.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except httpx.TransportError as error:
        raise WorkerDiedError(f"the controller broke a reply off: {error}") from error
    await send({"type": "http.response.body", "body": b""})


def _away() -> ServerError:
    return ServerError(
        "the controller does not answer; another server takes over within seconds: ask again",
        status=503,
        code="controller_away",
    )


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


class _Body:
    """A request's body, which may be read before it is known who answers."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._events: list[Any] = []
        self._ended = asyncio.Event()
        self.content = b""

    async def read(self, largest: int, use: BodyUse) -> bool:
        """Returns whether all of it came, and is not larger. Raises: OverloadedError, RequestError (408)."""
        parts, size, begun = [], 0, asyncio.get_running_loop().time()
        while True:
            event = await receive_in_time(self._next, begun, size)
            self._events.append(event)
            if event["type"] != "http.request":
                return False
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > largest:
                return False
            use.add(len(parts[-1]))
            if not event.get("more_body", False):
                self.content = b"".join(parts)
                return True

    async def receive(self) -> Any:
        """Returns what `read` has taken first."""
        return self._events.pop(0) if self._events else await self._next()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The whole body in pieces."""
        more = True
        while more:
            event = await self.receive()
            if event["type"] != "http.request":
                return
            more = event.get("more_body", False)
            yield event.get("body", b"")

    async def wait_until_gone(self) -> None:
        """Waits until the client has gone away, which is known once its body has been read."""
        await self._ended.wait()
        with contextlib.suppress(asyncio.CancelledError):
            while (await self._receive())["type"] != "http.disconnect":
                continue

    async def _next(self) -> Any:
        event = await self._receive()
        if event["type"] != "http.request" or not event.get("more_body", False):
            self._ended.set()
        return event

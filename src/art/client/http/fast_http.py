"""A short way to a server on this machine: plain chat completions straight over asyncio's transports.

It buys milliseconds: with a small model `openai`'s own way, over whichever HTTP library, costs more than
sampling does (`bench/serving/transport.py`; `docs/internals/benchmarks.md` has the figures). A `Lane`
reads what our own server writes over HTTP/1.1 keep-alive (a status line, headers, `content-length`) and
nothing else; for everything it does not know it gives up, and the caller takes the ordinary way.

`RolloutOpenAI` in `art.client.http.openai_client` is its only user. The seam: `lane_to` an address,
`request_head` of a client, `complete_over_lane`. Without them everything works, more slowly.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import random
from functools import lru_cache, partial
from inspect import signature
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

import openai
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ValidationError

from art.client.http.connection import TIMEOUT_S, PerLoop, file_budget, silent_peer_options
from art.errors import ConfigurationError
from art.rollout_tasks import current_rollout
from art.wire.rollouts import ROLLOUT_HEADER

MAX_HEAD_BYTES = 65_536
LARGE = 128 * 1024
"""Bytes from which a reply is read by a thread: 2 ms."""


class LaneError(ConnectionError):
    """The fast path cannot do this exchange; the regular path may."""


class LaneReply(NamedTuple):
    """status: HTTP status; head: status line and headers as bytes, lower case; body: exactly `content-length`
    bytes.
    """

    status: int
    head: bytes
    body: bytes

    def header(self, name: bytes) -> str | None:
        """The value of a header (its name in lower case), or None."""
        return _header(self.head, name)


def _header(head: bytes, name: bytes) -> str | None:
    start = head.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip().decode("latin-1")


class _Connection(asyncio.Protocol):
    """One keep-alive connection: one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[LaneReply] | None = None
        self._buffer = b""
        self._head: bytes | None = None
        self._body_end = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        for option in silent_peer_options():
            transport.get_extra_info("socket").setsockopt(*option)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._fail("the server closed the connection")

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._reply.done():
            self.abort()  # nobody asked
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self._head is None and not self._read_head():
            return
        if self._head is not None and len(self._buffer) >= self._body_end:
            self._finish(self._head)

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                self._fail("the reply's head has no end")
            return False
        head = self._buffer[:end].lower()
        length = _header(head, b"content-length")
        if length is None or not length.isdigit() or not head.startswith(b"http/1.1 "):
            self._fail("the reply has no length")
            return False
        self._head, self._body_end = head, end + 4 + int(length)
        return True

    def _finish(self, head: bytes) -> None:
        body = self._buffer[self._body_end - int(_header(head, b"content-length") or 0) : self._body_end]
        surplus = len(self._buffer) > self._body_end
        self._buffer, self._head = b"", None
        if surplus or (_header(head, b"connection") or "").lower() == "close":
            self.abort()
        if self._reply is not None:
            self._reply.set_result(LaneReply(int(head[9:12]), head, body))

    def _fail(self, why: str) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(LaneError(why))
        self.abort()

    def abort(self) -> None:
        """Close at once: the server sees that nobody waits any more."""
        if self.transport is not None:
            self.transport.abort()
            self.transport = None

    async def exchange(self, request: bytes, timeout: float) -> LaneReply:
        """Send one request and wait for its reply."""
        if self.transport is None:
            raise LaneError("the connection was closed")
        loop = asyncio.get_running_loop()
        self._reply = loop.create_future()
        deadline = loop.call_later(timeout, self._fail, f"no reply within {timeout:g} s")
        self.transport.write(request)
        try:
            return await self._reply
        finally:
            deadline.cancel()


class _Pool(NamedTuple):
    slots: asyncio.Semaphore
    idle: list[_Connection]


class Lane:
    """A pool of connections to one address. Each event loop has its own connections."""

    def __init__(
        self, host: str, port: int, *, connect_timeout: float = 5.0, max_connections: int | None = None
    ):
        self.host, self.port = host, port
        self._connect_timeout = connect_timeout
        room = max_connections or file_budget()
        self._of_loop = PerLoop(lambda: _Pool(asyncio.Semaphore(room), []))

    async def post(self, request: bytes, *, timeout: float) -> LaneReply:
        """Send a complete HTTP/1.1 request. `timeout` in seconds; raises LaneError."""
        slots, idle = self._of_loop.get()
        async with slots:
            connection = await self._get_connection(idle)
            try:
                reply = await connection.exchange(request, timeout)
            except BaseException:
                connection.abort()
                raise
            if connection.transport is not None:
                idle.append(connection)
            return reply

    async def _get_connection(self, idle: list[_Connection]) -> _Connection:
        loop = asyncio.get_running_loop()
        while idle:
            connection = idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        try:
            async with asyncio.timeout(self._connect_timeout):
                return (await loop.create_connection(_Connection, self.host, self.port))[1]
        except OSError as error:
            raise LaneError(f"nobody listens at {self.host}:{self.port}: {error}") from error

    def close(self) -> None:
        """Close the connections that are idle."""
        for _, idle in self._of_loop.alive():
            for connection in idle:
                connection.abort()
            idle.clear()


def lane_to(url: str) -> Lane | None:
    """A lane to plain HTTP on this machine, or on any host when no proxy is set; None to all others."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        return None
    try:
        loopback = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        loopback = False
    return Lane(parts.hostname, parts.port or 80) if loopback or not getproxies() else None


PATIENCE_S = {429: TIMEOUT_S, 503: 120.0}
"""How long `Retry-After` is obeyed: a full queue empties, a worker that starts again comes soon or never."""

_LEFT_TO_OPENAI = frozenset({"stream", "extra_headers", "extra_query"})
_STAINLESS = "x-stainless-"


def request_head(client: openai.AsyncOpenAI) -> bytes:
    """A request's head up to the rollout and the length, which differ each time."""
    lines = [f"POST {client.base_url.raw_path.decode().rstrip('/')}/chat/completions HTTP/1.1"]
    headers = {"host": client.base_url.netloc.decode(), "authorization": f"Bearer {client.api_key}"}
    headers |= {
        name.lower(): value for name, value in client.default_headers.items() if isinstance(value, str)
    }
    for name, value in headers.items():
        if not value.isprintable():
            raise ConfigurationError(f"the header {name!r} has a line break or another control character")
        # The platform's headers are for OpenAI; our server has no use for them.
        if not name.startswith(_STAINLESS):
            lines.append(f"{name}: {value}")
    return "\r\n".join(lines).encode("latin-1")


def _timeout_seconds(timeout: Any) -> float | None:
    """Returns how long one try may take; None for a timeout that only openai understands."""
    if timeout is None or isinstance(timeout, openai.NotGiven | openai.Omit):
        return TIMEOUT_S
    return float(timeout) if isinstance(timeout, int | float) else None


@lru_cache(maxsize=1)
def _known_options() -> frozenset[str]:
    return frozenset(signature(AsyncCompletions.create).parameters) - {"self"}


def _plain_body(options: dict[str, Any]) -> bytes | None:
    """The request as JSON, or None when it has something that openai must look at (or refuse)."""
    known, unset = _known_options(), openai.NotGiven | openai.Omit
    given = {key: value for key, value in options.items() if not isinstance(value, unset)}
    if not given.keys() <= known or "messages" not in given or "model" not in given:
        return None
    if any(given.get(key) for key in _LEFT_TO_OPENAI) or isinstance(given.get("response_format"), type):
        return None
    extra = given.pop("extra_body", None)
    body = {key: value for key, value in given.items() if key not in {*_LEFT_TO_OPENAI, "timeout"}}
    body.update(extra or {})
    write = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_as_json)
    try:
        return write(body).encode()
    except (TypeError, ValueError):
        return None  # openai has the words for what is wrong with it


def _as_json(value: Any) -> Any:
    """Replies that are sent back as messages are pydantic objects; openai sends them the same way."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True, mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} is left to openai")


async def complete_over_lane(lane: Lane, head: bytes, options: dict[str, Any]) -> ChatCompletion | None:
    """The completion of `create(**options)`, or None when the ordinary way has to try."""
    timeout = _timeout_seconds(options.get("timeout"))
    body = _plain_body(options) if timeout is not None else None
    if body is None or timeout is None:
        return None
    rollout = current_rollout()
    named = f"\r\n{ROLLOUT_HEADER}: {rollout}" if rollout is not None else ""
    request = head + f"{named}\r\ncontent-length: {len(body)}\r\n\r\n".encode("latin-1") + body
    asked = asyncio.get_running_loop().time()
    while True:
        try:
            reply = await lane.post(request, timeout=timeout)
        except LaneError:
            return None
        if reply.status == 200:
            return (
                await asyncio.to_thread(_completion, reply) if len(reply.body) > LARGE else _completion(reply)
            )
        pause, limit = _retry_after(reply), PATIENCE_S.get(reply.status, 0.0)
        if pause is None or asyncio.get_running_loop().time() + pause > asked + limit:
            return None
        await asyncio.sleep(pause)


def _completion(reply: LaneReply) -> ChatCompletion:
    try:
        completion = ChatCompletion.model_validate_json(reply.body)
    except ValidationError:
        completion = ChatCompletion.construct(**json.loads(reply.body))
    completion._request_id = reply.header(b"x-request-id")
    return completion


def _retry_after(reply: LaneReply) -> float | None:
    """Seconds to wait if the server said so; spread out, so that all waiting requests do not return at
    once.
    """
    try:
        return min(60.0, max(0.05, float(reply.header(b"retry-after") or ""))) * random.uniform(1.0, 1.25)
    except ValueError:
        return None

"""ASGI without a framework, for the routes that every sample takes: bodies, replies, errors.

Large request bodies are parsed beside the event loop. A parser holds the interpreter's lock for as long as
one call takes, a second for some 30 MB, whichever thread calls it. So a large body is read by a thread, and a
very large one in pieces: each call of the parser takes some milliseconds, and between two of them the event
loop has its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Protocol, TypeVar

import orjson

from art.errors import (
    ARTError,
    ConfigurationError,
    DeadlineError,
    DiskError,
    NodeLostError,
    OverloadedError,
    RequestError,
    ServerError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
    WorkerUnreachableError,
    cut_message,
)
from art.process.resources import trim_memory_in_thread
from art.server.tenancy import Tenant, redact_for_tenant

R = TypeVar("R")

LARGE = 128 * 1024
"""Bytes from which a body is read, and its prompt written, by a thread."""
DEEPEST = 254
"""Levels that a decoded body can be written again with."""
MOST_VALUES = 1_000_000
"""The most values, runs of numbers apart, in a body above `_IN_PIECES` bytes: more than a model can read."""
MOST_NUMBERS = 4_000_000
"""The most numbers in runs. To forget so many takes some 60 ms, in which nobody else has a turn."""
_IN_PIECES = 4 * 1024 * 1024
_MOST_AT_ONCE = 300_000
"""Values that one call of the parser makes in some 30 ms."""
_LONG = 50_000
"""Characters of which rendering takes some 10 ms."""
_THREADS = 2
"""The threads share one interpreter's lock with the event loop."""

_SPACE = re.compile(rb"[ \t\r\n]*")
_NUMBERS = re.compile(rb"[-+0-9.eE, \t\r\n]{1,65536}")
_SCALAR = re.compile(rb"[-+0-9.a-zA-Z]{1,4096}")
_SHORT = re.compile(rb'"[^"\\]{0,1024}"')
_FLAT = re.compile(rb'[\[{](?>[^"{}\[\]]{1,64}+|"(?>[^"\\]{1,64}+|\\.){0,64}+"){0,64}+[}\]]', re.DOTALL)
"""A small list or object that holds no other."""
_PIECE = re.compile(
    rb"(?>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u]|"
    rb'[^"\\]{1,64}+){1,4096}+',
    re.DOTALL,
)
"""Part of a text that ends between two characters, or within one that was not escaped."""


class TenantThreads:
    """Runs what takes long in a thread: one at a time for each tenant, so that they take turns."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="art-beside")
        self._turns: dict[Tenant, asyncio.Lock] = {}
        self._waiting: dict[Tenant, int] = {}

    async def run(self, size: int, tenant: Tenant, work: Callable[..., R], *arguments: Any) -> R:
        """`work(*arguments)`: at once where the `size` of what it reads, in bytes, is small."""
        if size <= LARGE:
            return work(*arguments)
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        try:
            async with turn:
                return await self._finished(work, *arguments)
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant], self._turns[tenant]

    async def _finished(self, work: Callable[..., R], *arguments: Any) -> R:
        """A thread cannot be stopped: the turn of whoever has gone away lasts until its work has ended."""
        job = self._threads.submit(_worked, work, *arguments)
        running = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            job.cancel()  # if it has not begun
            while not running.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # nobody is there to be told; else the log would be
            raise
        finally:
            # They hold an error, whose traceback holds this frame: a body would stay for hours.
            del job, running


def _worked(work: Callable[..., R], *arguments: Any) -> R:
    """Does the work. What it read before a refusal is forgotten here: the event loop would take 80 ms."""
    try:
        return work(*arguments)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise


async def run_in_thread_if_large(size: int, work: Callable[..., R], *arguments: Any) -> R:
    """`work(*arguments)`, in a thread where what it writes is so long that everybody else would wait."""
    if size < _LONG:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


def decode_json(body: bytes) -> Any:
    """The value of a body. Raises: RequestError (400)."""
    if len(body) > _IN_PIECES or (len(body) > LARGE and _marks(body) > _MOST_AT_ONCE):
        return _Pieces(body).read()
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "depth limit" in str(error):
            raise _too_deep() from error
        raise _invalid(str(error)) from error
    if body.count(b"[") + body.count(b"{") > DEEPEST:
        _check_depth(value)
    return value


def _marks(body: bytes) -> int:
    """No fewer than the values in it."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


class _Pieces:
    """Reads what the parser reads, by many calls of it."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._values_left = MOST_VALUES
        self._numbers_left = MOST_NUMBERS

    def read(self) -> Any:
        """The value of the whole body. Raises: RequestError (400)."""
        try:
            value, at = self._value(self._skip(0), 1)
        except orjson.JSONDecodeError as error:
            raise _invalid(str(error)) from error
        if self._skip(at) != len(self._body):
            raise _invalid(f"more follows its value at byte {at}")
        return value

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        self._count(1)
        mark = self._body[at : at + 1]
        if mark == b'"':
            return self._text(at)
        if mark not in (b"[", b"{"):
            return self._parsed(_SCALAR, at)
        if depth > DEEPEST:
            raise _too_deep()
        flat = _FLAT.match(self._body, at)
        if flat is not None:
            self._count(flat[0].count(b","))
            return orjson.loads(flat[0]), flat.end()
        return self._list(at, depth) if mark == b"[" else self._object(at, depth)

    def _parsed(self, shape: re.Pattern[bytes], at: int) -> tuple[Any, int]:
        found = shape.match(self._body, at)
        if found is None:
            self._refuse(at)
        return orjson.loads(found[0]), found.end()

    def _text(self, at: int) -> tuple[str, int]:
        if self._body[at : at + 1] != b'"':
            self._refuse(at)
        short = _SHORT.match(self._body, at)
        if short is not None:
            return orjson.loads(short[0]), short.end()
        parts: list[str] = []
        at += 1
        while self._body[at : at + 1] != b'"':
            piece = _PIECE.match(self._body, at)
            if piece is None:
                self._refuse(at)
            end = piece.end()
            while end < len(self._body) and self._body[end] & 0xC0 == 0x80 and end > at:
                end -= 1
            if end == at:
                self._refuse(at)
            parts.append(orjson.loads(b'"%b"' % self._body[at:end]))
            at = end
        return "".join(parts), at + 1

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = self._skip(at + 1)
        if self._body[at : at + 1] == b"]":
            return items, at + 1
        while True:
            run = _NUMBERS.match(self._body, at)
            end = run[0].rfind(b",") if run is not None else -1
            if run is not None and end >= 0:
                numbers = orjson.loads(b"[%b]" % run[0][:end])
                if not numbers:
                    self._refuse(at)
                self._numbers_left -= len(numbers)
                if self._numbers_left < 0:
                    raise _too_many(MOST_NUMBERS, "numbers")
                items += numbers
                at = self._skip(at + end + 1)
                continue
            value, at = self._value(at, depth + 1)
            items.append(value)
            at, ended = self._next_item(at, b"]")
            if ended:
                return items, at

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self._skip(at + 1)
        if self._body[at : at + 1] == b"}":
            return found, at + 1
        while True:
            name, at = self._text(at)
            at = self._skip(at)
            if self._body[at : at + 1] != b":":
                self._refuse(at)
            found[name], at = self._value(self._skip(at + 1), depth + 1)
            at, ended = self._next_item(at, b"}")
            if ended:
                return found, at

    def _next_item(self, at: int, close: bytes) -> tuple[int, bool]:
        """Returns the start of the next item, or (True) of what follows the whole."""
        at = self._skip(at)
        mark = self._body[at : at + 1]
        if mark == close:
            return at + 1, True
        if mark != b",":
            self._refuse(at)
        return self._skip(at + 1), False

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._body, at)
        assert found is not None  # it matches nothing as well
        return found.end()

    def _count(self, values: int) -> None:
        self._values_left -= values
        if self._values_left < 0:
            raise _too_many(MOST_VALUES, "values")

    def _refuse(self, at: int) -> NoReturn:
        shown = self._body[at : at + 20]
        raise _invalid(f"unexpected {shown!r} at byte {at}" if shown else "it ends too early")


def _too_many(most: int, what: str) -> RequestError:
    return RequestError(
        f"the body holds more than {most} {what}: no model has room for them",
        status=400,
        code="context_length_exceeded",
    )


def _check_depth(value: Any) -> None:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        # It is read deeper than it is written, and so deep that Python's own recursion ends.
        raise _too_deep() from error


def _too_deep() -> RequestError:
    return RequestError(f"the body is nested more than {DEEPEST} deep", status=400, code="nested_too_deeply")


def _invalid(problem: str) -> RequestError:
    return RequestError(f"the body is not valid JSON: {problem}", status=400, code="invalid_json")


Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

CLIENT = "art.client"
"""The key of a request's scope with its `Client`, where our own HTTP protocol took the request."""

_JSON = (b"content-type", b"application/json")


_CLOSING = ((b"connection", b"close"),)
"""The rest of a body that came too slowly is not waited for."""

ARRIVAL_GRACE = 30.0
"""Seconds within which a small body must have come."""
SLOWEST_ARRIVAL = 256 * 1024
"""Bytes a second at which a larger one must come."""
_GIVEN_BACK = 4 * 1024 * 1024
"""Bytes of bodies after which freed memory is given back to the system."""
_LONGEST_MESSAGE = 4000


class Client(Protocol):
    """The client of a request: reports whether its body has arrived and when it disconnects."""

    def has_sent_all(self) -> bool:
        """Returns whether the whole body is here, to be received without waiting."""
        ...

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Call this once the client has gone away, at once if it has; None: nobody wants to know."""
        ...


class ClientGoneError(Exception):
    """The client closed its connection before its request had arrived."""


class MethodNotAllowedError(RequestError):
    """The route exists, but not for this method; `allowed` are those that it knows."""

    def __init__(self, scope: Scope, allowed: str) -> None:
        super().__init__(
            f"{scope['method']} {scope['path']} does not exist: use {allowed}",
            status=405,
            code="method_not_allowed",
        )
        self.allowed = allowed


BODY = "art.body"
"""The key of a request's scope with its `BodyUse`, where bodies are counted."""


class BodyMemory:
    """Counts the bytes of bodies in memory, from their first byte until their requests are answered.

    A tenant has at most `tenant_bytes`, and all together with the operator have at most `all_bytes`. One body
    alone is always taken: how large it may be is its route's matter. One event loop owns it.
    """

    def __init__(self, tenant_bytes: int, all_bytes: int) -> None:
        self._tenant_bytes = tenant_bytes
        self._all_bytes = all_bytes
        self.bytes_of: Counter[Tenant] = Counter()
        self._bytes = 0
        self._freed = 0

    def use(self, tenant: Tenant) -> BodyUse:
        """Returns the use of one request; `with` it, the memory is given back at the end."""
        return BodyUse(self, tenant)

    def check_room(self, tenant: Tenant, own: int, size: int) -> None:
        """Raises OverloadedError where `size` bytes of a request, which has `own`, find no room."""
        known = self.bytes_of[tenant]
        if tenant is not None and known > own and known - own + size > self._tenant_bytes:
            raise _no_room("you have", known, self._tenant_bytes)
        if self._bytes > own and self._bytes - own + size > self._all_bytes:
            raise _no_room("all requests together have", self._bytes, self._all_bytes)

    def count(self, tenant: Tenant, size: int) -> None:
        """So many bytes more are in memory."""
        self.bytes_of[tenant] += size
        self._bytes += size

    def free(self, tenant: Tenant, size: int) -> None:
        """So many bytes are no longer in memory."""
        self.count(tenant, -size)
        if not self.bytes_of[tenant]:
            del self.bytes_of[tenant]
        self._freed += size
        if self._freed >= _GIVEN_BACK:
            self._freed = 0
            # Soon: what was read of the body lives until its request has returned.
            asyncio.get_running_loop().call_later(1.0, trim_memory_in_thread)


class BodyUse:
    """The body of one request."""

    def __init__(self, memory: BodyMemory, tenant: Tenant) -> None:
        self._memory, self._tenant = memory, tenant
        self._size = 0

    def __enter__(self) -> BodyUse:
        return self

    def __exit__(self, *_: object) -> None:
        if self._size:
            self._memory.free(self._tenant, self._size)

    def expect(self, size: int) -> None:
        """Raises OverloadedError where a body of this size would find no room now."""
        self._memory.check_room(self._tenant, self._size, size)

    def add(self, size: int) -> None:
        """So many bytes more have come. Raises OverloadedError."""
        self._memory.check_room(self._tenant, self._size, self._size + size)
        self._size += size
        self._memory.count(self._tenant, size)


def _no_room(who: str, size: int, limit: int) -> OverloadedError:
    return OverloadedError(
        f"{who} {size} bytes of request bodies in memory, the limit is {limit}: wait for some of the replies",
        code="too_many_body_bytes",
    )


async def read_bytes(scope: Scope, receive: Receive, *, limit: int, advice: str = "") -> bytes:
    """The body; `limit` in bytes. A body that says it is larger is refused before any of it is read.

    Raises: RequestError (413, 400; 408 when it comes too slowly), OverloadedError, ClientGoneError.
    """
    announced = _announced(scope)
    if announced > limit:
        raise _too_large(limit, advice)
    use: BodyUse | None = scope.get(BODY)
    if use is not None:
        use.expect(announced)
    chunks: list[bytes] = []
    size = 0
    more = True
    begun = asyncio.get_running_loop().time()
    client: Client | None = scope.get(CLIENT)
    while more:
        if client is not None and client.has_sent_all():
            event = await receive()
        else:
            event = await receive_in_time(receive, begun, size)
        if event["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = event.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit, advice)
        if use is not None:
            use.add(len(chunk))
        chunks.append(chunk)
        more = event.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def receive_in_time(receive: Receive, begun: float, size: int) -> Event:
    """The next part of a body that began to come at `begun`, by the loop's clock, and of which `size` bytes
    have come. Raises: RequestError (408).
    """
    try:
        async with asyncio.timeout_at(begun + ARRIVAL_GRACE + size / SLOWEST_ARRIVAL):
            return await receive()
    except TimeoutError as error:
        raise RequestError(
            f"{size} bytes of the body came, and then nothing in time", status=408, code="body_timeout"
        ) from error


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


def _too_large(limit: int, advice: str) -> RequestError:
    return RequestError(f"the body is larger than {limit} bytes{advice}", status=413, code="body_too_large")


async def send_json(
    send: Send, body: bytes, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """A whole JSON reply."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [_JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ARTError, tenant: Tenant = None) -> None:
    """A failed request's reply, in OpenAI's shape, in the words of who asked."""
    status, headers = status_of(error)
    await send_json(send, orjson.dumps(error_body(error, tenant)), status, headers)


def status_of(error: ARTError) -> tuple[int, tuple[tuple[bytes, bytes], ...]]:
    """HTTP status and headers of an error."""
    if isinstance(error, OverloadedError):
        # Whole seconds: some clients read no fractions.
        return error.status, ((b"retry-after", str(max(1, round(error.retry_after))).encode()),)
    if isinstance(error, MethodNotAllowedError):
        return error.status, ((b"allow", error.allowed.encode()),)
    if isinstance(error, ServerError):
        return error.status, _CLOSING if error.status == 408 else ()
    if isinstance(error, WorkerDiedError | WorkerStalledError):
        return 503, ((b"retry-after", b"1"),)
    if isinstance(error, DeadlineError):
        return 503, ()
    if isinstance(error, ConfigurationError):
        return 400, ()
    if isinstance(error, DiskError):
        return error.status_code, ((b"x-should-retry", b"false"),)  # or openai has it sampled ten times more
    return 500, ()


def error_body(error: ARTError, tenant: Tenant = None) -> dict[str, Any]:
    """`{"error": {...}}` as OpenAI writes it."""
    status, _ = status_of(error)
    code = error.code if isinstance(error, ServerError) else _CODES.get(type(error), "internal_error")
    param = error.param if isinstance(error, ServerError) else None
    message = cut_message(redact_for_tenant(tenant, str(error)), _LONGEST_MESSAGE)
    return {"error": {"message": message, "type": _kind(status), "param": param, "code": code}}


_CODES: dict[type[ARTError], str] = {
    NodeLostError: "node_lost",
    WorkerDiedError: "worker_died",
    WorkerUnreachableError: "worker_died",
    WorkerStalledError: "worker_stalled",
    WorkerError: "worker_failed",
    DeadlineError: "deadline_exceeded",
    ConfigurationError: "invalid_configuration",
    DiskError: "disk_error",
}


def _kind(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"

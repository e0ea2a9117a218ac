"""ASGI without a framework, for the routes that every sample takes: bodies, replies, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import orjson

from art.errors import (
    ARTError,
    ConfigurationError,
    DeadlineError,
    DiskError,
    OverloadedError,
    RequestError,
    ServerError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)
from art.server.tenancy import Tenant, redact_for_tenant

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

CLIENT = "art.client"
"""In a request's scope: its `Client`, where our own HTTP protocol took the request."""

_JSON = (b"content-type", b"application/json")


_CLOSING = ((b"connection", b"close"),)
"""The rest of a body that came too slowly is not waited for."""

ARRIVAL_GRACE = 30.0
"""Seconds within which a small body must have come."""
SLOWEST_ARRIVAL = 64 * 1024
"""Bytes a second at which a larger one must come."""
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


async def read_bytes(scope: Scope, receive: Receive, *, limit: int, advice: str = "") -> bytes:
    """The body; `limit` in bytes. A body that says it is larger is refused before any of it is read.

    Raises: RequestError (413, 400; 408 when it comes too slowly), ClientGoneError.
    """
    if _announced(scope) > limit:
        raise _too_large(limit, advice)
    chunks: list[bytes] = []
    size = 0
    more = True
    begun = asyncio.get_running_loop().time()
    client: Client | None = scope.get(CLIENT)
    while more:
        if client is not None and client.has_sent_all():
            event = await receive()
        else:
            event = await _in_time(receive, begun, size)
        if event["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = event.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit, advice)
        chunks.append(chunk)
        more = event.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _in_time(receive: Receive, begun: float, size: int) -> Event:
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
        return error.status_code, ()
    return 500, ()


def error_body(error: ARTError, tenant: Tenant = None) -> dict[str, Any]:
    """`{"error": {...}}` as OpenAI writes it."""
    status, _ = status_of(error)
    code = error.code if isinstance(error, ServerError) else _CODES.get(type(error), "internal_error")
    param = error.param if isinstance(error, ServerError) else None
    message = _shortened(redact_for_tenant(tenant, str(error)))
    return {"error": {"message": message, "type": _kind(status), "param": param, "code": code}}


def _shortened(message: str) -> str:
    """Messages show the values they are about, and a value may be as large as the body."""
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return f"{message[: _LONGEST_MESSAGE // 2]} ... {message[-_LONGEST_MESSAGE // 4 :]}"


_CODES: dict[type[ARTError], str] = {
    WorkerDiedError: "worker_died",
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

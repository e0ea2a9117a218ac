"""ASGI without a framework, for the routes that every sample takes: bodies, replies, errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from art.errors import (
    ARTError,
    ConfigurationError,
    DeadlineError,
    OverloadedError,
    RequestError,
    ServerError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)
from art.server.tenants.tenancy import Tenant, told

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON = (b"content-type", b"application/json")


class ClientGoneError(Exception):
    """The client closed its connection before its request had arrived."""


async def read_json(receive: Receive, *, limit: int) -> Any:
    """The decoded body; `limit` in bytes. Raises: RequestError (413, 400), ClientGoneError."""
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = event.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise RequestError(f"the body is larger than {limit} bytes", status=413, code="body_too_large")
        chunks.append(chunk)
        more = event.get("more_body", False)
    try:
        return orjson.loads(chunks[0] if len(chunks) == 1 else b"".join(chunks))
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}", status=400, code="invalid_json") from error


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
    if isinstance(error, ServerError):
        return error.status, ()
    if isinstance(error, WorkerDiedError | WorkerStalledError):
        return 503, ((b"retry-after", b"1"),)
    if isinstance(error, DeadlineError):
        return 503, ()
    if isinstance(error, ConfigurationError):
        return 400, ()
    return 500, ()


def error_body(error: ARTError, tenant: Tenant = None) -> dict[str, Any]:
    """`{"error": {...}}` as OpenAI writes it."""
    status, _ = status_of(error)
    code = error.code if isinstance(error, ServerError) else _CODES.get(type(error), "internal_error")
    param = error.param if isinstance(error, ServerError) else None
    return {
        "error": {"message": told(tenant, str(error)), "type": _kind(status), "param": param, "code": code}
    }


_CODES: dict[type[ARTError], str] = {
    WorkerDiedError: "worker_died",
    WorkerStalledError: "worker_stalled",
    WorkerError: "worker_failed",
    DeadlineError: "deadline_exceeded",
    ConfigurationError: "invalid_configuration",
}


def _kind(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"

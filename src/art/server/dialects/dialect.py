"""What all dialects share: the body, a client that goes away, errors in their shape, streams as server-sent
events.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

import orjson
from starlette.routing import Route

from art.errors import ARTError, RequestError
from art.server.catalog import Target
from art.server.chat.chat_request import ChatRequest
from art.server.chat.prompt_and_reply import PreparedRequest, check_messages_fit
from art.server.chat.request_fields import LeftOutParts
from art.server.dialects.completion_service import CompletionService, StreamEvent
from art.server.http import (
    CLIENT,
    Client,
    Receive,
    Scope,
    Send,
    TenantThreads,
    decode_json,
    read_bytes,
    send_error,
)
from art.server.settings import LimitSettings
from art.server.tenancy import Tenant, tenant_in
from art.wire.json_lines import one_line
from art.wire.rollouts import RAW_ROLLOUT_HEADER, ROLLOUT_HEADER

_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")],
}


class StreamWriter(Protocol):
    """A dialect's words for a stream. Each method gives bytes of server-sent events, empty for none."""

    def write(self, event: StreamEvent) -> bytes:
        """`StreamStarted` first, then what happens to the choices."""
        ...

    def close(self) -> bytes:
        """Writes the end after the last choice has ended."""
        ...

    def fail(self, error: ARTError) -> bytes:
        """Instead of all that would have followed."""
        ...


async def send_stream(events: AsyncIterator[StreamEvent], writer: StreamWriter, send: Send) -> bool:
    """Send the whole stream; False: it ended with an error.

    Raises: ARTError before the first byte; later ones the writer tells.
    """
    started, failed = False, False
    try:
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                body = writer.write(event)
                if not started:
                    await send(_START)
                    started = True
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        last = writer.close()
    except ARTError as error:
        if not started:
            raise
        last, failed = writer.fail(error), True
    await send({"type": "http.response.body", "body": last})
    return not failed


def data_event(body: bytes) -> bytes:
    """One event without a name."""
    return b"data: " + one_line(body) + b"\n\n"


DONE = data_event(b"[DONE]")
"""OpenAI's and vLLM's end of a stream."""


def named_event(name: str, body: dict[str, Any]) -> bytes:
    """One event with its name."""
    return b"event: " + name.encode() + b"\n" + data_event(orjson.dumps(body))


LONGEST_ROLLOUT_ID = 256


class Dialect(ABC):
    """One POST route of the endpoint: `read`, `answer`, and `refuse` where its errors look otherwise.

    >>> def read(self, scope, body):
    ...     return read_chat_request(body, max_n=self.limits.max_n)
    >>> async def answer(self, scope, request, send):
    ...     target = await self.target_of(scope, request)
    ...     with self.service.catalog.using(target):
    ...         prepared = await self.prepare(scope, request, target)
    ...         done = await complete_request(self.service, prepared)     # or send_stream(...)
    ...         await send_json(send, written(done))
    ...         self.service.delivered(prepared)
    """

    def __init__(
        self, service: CompletionService, limits: LimitSettings, threads: TenantThreads | None = None
    ) -> None:
        self.service = service
        self.limits = limits
        self.threads = threads or TenantThreads()
        self.routes: list[Route] = []
        """Further addresses: lookups of what was answered."""

    @abstractmethod
    def read(self, scope: Scope, body: Any) -> Any:
        """The request of a decoded body; of a large one in a thread. Raises: RequestError, NotFoundError."""

    @abstractmethod
    async def answer(self, scope: Scope, request: Any, send: Send) -> None:
        """Answer what was read. An ARTError raised before the first byte becomes `refuse`."""

    def size(self, body: bytes) -> int:
        """Bytes that are read with a body."""
        return len(body)

    async def refuse(self, send: Send, error: ARTError, tenant: Tenant = None) -> None:
        """The reply of a failed request."""
        await send_error(send, error, tenant)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, unless its client goes away first. Raises an ARTError for `refuse`."""
        tenant = tenant_in(scope)
        body = await read_bytes(scope, receive, limit=self.limits.max_body_bytes)
        task = asyncio.current_task()
        assert task is not None
        gone = _ClientGone(task)
        client: Client | None = scope.get(CLIENT)
        if client is not None:
            client.when_gone(gone)
        watch = asyncio.create_task(_await_gone(receive, gone)) if client is None else None
        try:
            request = await self.threads.run(self.size(body), tenant, self._read_checked, scope, body)
            del body
            await self.answer(scope, request, send)
        except asyncio.CancelledError:
            if not gone.happened:
                raise
            # The client went away; its generation is cancelled, and nobody waits for a reply.
            task.uncancel()
        finally:
            if client is not None:
                client.when_gone(None)
            if watch is not None:
                watch.cancel()

    def _read_checked(self, scope: Scope, body: bytes) -> Any:
        return self.read(scope, decode_json(body))

    async def target_of(self, scope: Scope, request: ChatRequest) -> Target:
        """Returns the target of the request: lease it before preparing. Raises: NotFoundError listing the
        served names.
        """
        target = await self.service.resolve(request.model, rollout_of(scope), tenant=tenant_in(scope))
        target = target.confined_for(tenant_in(scope))
        wished = {
            name: value for name, value in request.optional_arguments.items() if target.renderer.knows(name)
        }
        arguments = {**wished, **(request.chat_template_kwargs or {})}
        if not arguments:
            return target
        try:
            return replace(target, renderer=target.renderer.with_arguments(arguments))
        except RequestError as error:
            if not wished or request.chat_template_kwargs:
                raise
            effort = f"{request.effort_field} = {request.reasoning_effort!r}"
            raise RequestError(
                f"{effort} is not supported by this model ({error})",
                status=error.status,
                code="unsupported_parameter",
                param=request.effort_field,
            ) from error

    async def prepare(self, scope: Scope, request: ChatRequest, target: Target) -> PreparedRequest:
        """The prompt, in the rollout that the request names. Raises: RequestError."""
        check_messages_fit(request, target)
        return await self.service.prepare(request, target, rollout_of(scope), tenant=tenant_in(scope))


def rollout_of(scope: Scope) -> str | None:
    """The rollout that a request names. Raises: RequestError for a name that is none."""
    for name, value in scope["headers"]:
        if name == RAW_ROLLOUT_HEADER:
            rollout: str = value.decode("latin-1")
            if not rollout or len(rollout) > LONGEST_ROLLOUT_ID or not rollout.isprintable():
                raise RequestError(
                    f"header {ROLLOUT_HEADER} must be 1 to {LONGEST_ROLLOUT_ID} printable characters",
                    status=400,
                    code="invalid_value",
                    param=ROLLOUT_HEADER,
                )
            return rollout
    return None


class _ClientGone:
    """Called when the client of a request has gone away: nobody waits for the reply."""

    __slots__ = ("_task", "happened")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.happened = False

    def __call__(self) -> None:
        self.happened = True
        self._task.cancel()


async def _await_gone(receive: Receive, gone: _ClientGone) -> None:
    """Waits for the disconnect on servers that report it no other way."""
    while (await receive())["type"] != "http.disconnect":
        continue
    gone()


class AgentDialect(Dialect):
    """A dialect that agents speak, which nobody here can edit: what cannot change a reply it leaves out."""

    route: str
    """The name under which it is logged and counted."""

    def __init__(
        self,
        service: CompletionService,
        limits: LimitSettings,
        threads: TenantThreads | None = None,
        counts: Counter[tuple[str, str]] | None = None,
    ) -> None:
        """counts: of what requests had that was left out."""
        super().__init__(service, limits, threads)
        self.left_out = LeftOutParts(self.route, counts, strict=limits.strict_requests)

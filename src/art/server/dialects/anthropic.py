"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's way of asking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from art.errors import ARTError
from art.server.dialects.anthropic_events import Event, MessageEvents
from art.server.dialects.anthropic_reply import (
    anthropic_error,
    blocks_of,
    message_object,
    stop_of,
    usage_of,
)
from art.server.dialects.anthropic_request import chat_body
from art.server.dialects.chat_prepared import Prepared
from art.server.dialects.chat_reply import Completion
from art.server.dialects.chat_request import ChatRequest, read_chat_request
from art.server.dialects.dialect import Dialect
from art.server.dialects.event_stream import named, stream_reply
from art.server.dialects.length import check_request
from art.server.dialects.told import Begun, Ended, StreamedChoice, StreamEvent, told
from art.server.dialects.whole import whole
from art.server.http import Scope, Send, send_json, status_of
from art.server.tenants.tenancy import Tenant, tenant_in


class _Anthropic(Dialect):
    """What both routes share: errors in Anthropic's shape."""

    async def refuse(self, send: Send, error: ARTError, tenant: Tenant = None) -> None:
        """The reply of a failed request."""
        status, headers = status_of(error)
        await send_json(send, orjson.dumps(anthropic_error(error, tenant)), status, headers)


class AnthropicMessages(_Anthropic):
    """Answers messages, whole or streamed."""

    def read(self, scope: Scope, body: Any) -> ChatRequest:
        """The request of a decoded body. Raises: RequestError."""
        return read_chat_request(chat_body(body), max_n=1)

    async def answer(self, scope: Scope, request: ChatRequest, send: Send) -> None:
        """Sample what is asked for."""
        target = await self.target_of(scope, request)
        async with self.sampler.catalog.lease(target):
            prepared = await self.prepare(scope, request, target)
            if request.stream:
                if await stream_reply(told(self.sampler, prepared), MessageStream(prepared), send):
                    self.sampler.delivered(prepared)
                return
            (one,) = await whole(self.sampler, prepared)
            message = _message(
                prepared,
                one.completion,
                blocks_of(one.message),
                stop_of(one.completion, one.message, context_full=_context_full(prepared)),
            )
            await send_json(send, orjson.dumps(message))
            self.sampler.delivered(prepared)


class AnthropicTokens(_Anthropic):
    """Counts the tokens of a request, written as a first turn."""

    def read(self, scope: Scope, body: Any) -> ChatRequest:
        """The request of a decoded body. Raises: RequestError."""
        return read_chat_request(chat_body(body, counting=True), max_n=1)

    async def answer(self, scope: Scope, request: ChatRequest, send: Send) -> None:
        """Render what is asked for."""
        target = await self.target_of(scope, request)
        check_request(request, target)
        ids = await self.sampler.rendered(request, target, tenant=tenant_in(scope))
        await send_json(send, orjson.dumps({"input_tokens": len(ids)}))


class MessageStream:
    """Writes a stream's events as Anthropic's."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._events = MessageEvents()

    def write(self, event: StreamEvent) -> bytes:
        """The events that tell of this one."""
        return b"".join(named(one["type"], one) for one in self._told(event))

    def close(self) -> bytes:
        """Nothing: the message has told its end."""
        return b""

    def fail(self, error: ARTError) -> bytes:
        """The error as an event."""
        return named("error", anthropic_error(error, self._prepared.tenant))

    def _told(self, event: StreamEvent) -> Iterable[Event]:
        if isinstance(event, Begun):
            completion = event.choices[0].completion
            stop = {"stop_reason": None, "stop_sequence": None}
            started = _message(self._prepared, completion, [], stop)
            started["usage"]["output_tokens"] = 0
            yield from self._events.start(started)
            return
        if event.reasoning:
            yield from self._events.thinking(event.reasoning)
        if event.content:
            yield from self._events.text(event.content)
        for piece in event.calls:
            if piece.opens:
                yield from self._events.call(piece.call)
            if piece.arguments:
                yield from self._events.arguments(piece.arguments)
        if isinstance(event, Ended):
            yield from self._end(event.choice)

    def _end(self, choice: StreamedChoice) -> Iterable[Event]:
        completion, prepared = choice.completion, self._prepared
        stop = stop_of(completion, choice.message, context_full=_context_full(prepared))
        usage = usage_of(len(prepared.stitched.prompt_ids), completion)
        yield from self._events.end(stop, usage)


def _message(
    prepared: Prepared, completion: Completion, content: list[dict[str, Any]], stop: dict[str, Any]
) -> dict[str, Any]:
    return message_object(
        completion,
        model=prepared.request.model,
        step=prepared.target.step,
        content=content,
        stop=stop,
        input_tokens=len(prepared.stitched.prompt_ids),
    )


def _context_full(prepared: Prepared) -> bool:
    request: ChatRequest = prepared.request
    return request.max_tokens is not None and prepared.max_tokens < request.max_tokens

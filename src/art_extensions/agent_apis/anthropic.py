"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect.

A reply is content blocks, the reason of the end and usage. In a stream blocks are opened, grow and are
closed, one after the other (`MessageEvents`). Errors have Anthropic's shape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
from pydantic_core import from_json

from art.errors import ARTError
from art.server.chat.chat_request import ChatRequest, read_chat_request
from art.server.chat.prompt_and_reply import Completion, PreparedRequest, check_messages_fit
from art.server.dialects.completion_service import (
    ChoiceFinished,
    StreamedChoice,
    StreamEvent,
    StreamStarted,
    complete_request,
    stream_reply_events,
)
from art.server.dialects.dialect import AgentDialect, named_event, send_stream
from art.server.http import Scope, Send, error_body, send_json, status_of
from art.server.tenancy import Tenant, tenant_in
from art.wire.rollouts import SAMPLE_FIELD, STEP_FIELD
from art_extensions.agent_apis.anthropic_request import ROUTE, chat_body

Event = dict[str, Any]

_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class MessageEvents:
    """Writes one message's events, and knows which block is open."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def start(self, message: Mapping[str, Any]) -> Iterator[Event]:
        """The message with no content yet."""
        yield {"type": "message_start", "message": dict(message)}

    def text(self, new: str) -> Iterator[Event]:
        """Returns the event of further text."""
        yield from self._enter_block("text")
        yield self._delta({"type": "text_delta", "text": new})

    def thinking(self, new: str) -> Iterator[Event]:
        """Returns the event of further thinking."""
        yield from self._enter_block("thinking")
        yield self._delta({"type": "thinking_delta", "thinking": new})

    def call(self, call: Mapping[str, Any]) -> Iterator[Event]:
        """A call begins, as chat spells it."""
        yield from self._close()
        block = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}
        yield from self._begin("tool_use", block)

    def arguments(self, new: str) -> Iterator[Event]:
        """Returns the event of further arguments of the call: the text that the model wrote."""
        yield self._delta({"type": "input_json_delta", "partial_json": new})

    def end(self, stop: Mapping[str, Any], usage: Mapping[str, Any]) -> Iterator[Event]:
        """The reason of the end, and the end."""
        yield from self._close()
        yield {"type": "message_delta", "delta": dict(stop), "usage": dict(usage)}
        yield {"type": "message_stop"}

    def _enter_block(self, kind: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self._close()
            yield from self._begin(kind, _EMPTY[kind])

    def _begin(self, kind: str, block: Mapping[str, Any]) -> Iterator[Event]:
        self._index += 1
        self._open = kind
        yield {"type": "content_block_start", "index": self._index, "content_block": dict(block)}

    def _close(self) -> Iterator[Event]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _delta(self, delta: Mapping[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": dict(delta)}


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content blocks of an assistant's chat message: thinking, text, calls."""
    blocks: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    if message.get("content"):
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": _input(function["arguments"]),
            }
        )
    return blocks


def _input(arguments: str) -> Any:
    """The object; of one that was cut off what is there, as the SDK reads it from a stream."""
    with contextlib.suppress(orjson.JSONDecodeError):  # then it was cut off
        return orjson.loads(arguments)
    try:
        read = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def stop_of(completion: Completion, message: Mapping[str, Any], *, context_full: bool) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`. `context_full`: there was room for less than `max_tokens`."""
    if completion.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": completion.stop_string}
    if completion.finish_reason == "length":
        reason = "model_context_window_exceeded" if context_full else "max_tokens"
    else:
        reason = "tool_use" if message.get("tool_calls") else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def message_object(
    completion: Completion,
    *,
    model: str,
    step: int | None,
    content: list[dict[str, Any]],
    stop: Mapping[str, Any],
    input_tokens: int,
) -> dict[str, Any]:
    """A `message`; sample and step are extra fields of it."""
    return {
        "id": f"msg_{completion.sample_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **stop,
        "usage": usage_of(input_tokens, completion),
        SAMPLE_FIELD: completion.sample_id,
        STEP_FIELD: step,
    }


def usage_of(input_tokens: int, completion: Completion) -> dict[str, Any]:
    """Counts of ids."""
    return {"input_tokens": input_tokens, "output_tokens": len(completion.token_ids)}


def anthropic_error(error: ARTError, tenant: Tenant = None) -> dict[str, Any]:
    """`{"type": "error", "error": {...}}`; `details.error_code` is the code that OpenAI's shape has."""
    status, _ = status_of(error)
    openai_error = error_body(error, tenant)["error"]
    details = {"error_code": openai_error["code"], "param": openai_error["param"]}
    kind = "invalid_request_error" if status < 500 else "api_error"
    return {
        "type": "error",
        "error": {"type": _KINDS.get(status, kind), "message": openai_error["message"], "details": details},
    }


class _Anthropic(AgentDialect):
    """The part that both routes share: errors in Anthropic's format."""

    route = ROUTE

    async def refuse(self, send: Send, error: ARTError, tenant: Tenant = None) -> None:
        """The reply of a failed request."""
        status, headers = status_of(error)
        await send_json(send, orjson.dumps(anthropic_error(error, tenant)), status, headers)


class AnthropicMessages(_Anthropic):
    """Answers messages, whole or streamed."""

    def read(self, scope: Scope, body: Any) -> ChatRequest:
        """The request of a decoded body. Raises: RequestError."""
        return read_chat_request(chat_body(body, self.left_out), max_n=1)

    async def answer(self, scope: Scope, request: ChatRequest, send: Send) -> None:
        """Sample what is asked for."""
        target = await self.target_of(scope, request)
        with self.service.catalog.using(target):
            prepared = await self.prepare(scope, request, target)
            if request.stream:
                if await send_stream(
                    stream_reply_events(self.service, prepared), MessageStream(prepared), send
                ):
                    self.service.delivered(prepared)
                return
            (one,) = await complete_request(self.service, prepared)
            message = _message(
                prepared,
                one.completion,
                blocks_of(one.message),
                stop_of(one.completion, one.message, context_full=_context_full(prepared)),
            )
            await send_json(send, orjson.dumps(message))
            self.service.delivered(prepared)


class AnthropicTokens(_Anthropic):
    """Counts the tokens of a request, written as a first turn."""

    def read(self, scope: Scope, body: Any) -> ChatRequest:
        """The request of a decoded body. Raises: RequestError."""
        return read_chat_request(chat_body(body, self.left_out, counting=True), max_n=1)

    async def answer(self, scope: Scope, request: ChatRequest, send: Send) -> None:
        """Render what is asked for."""
        target = await self.target_of(scope, request)
        check_messages_fit(request, target)
        ids = await self.service.rendered(request, target, tenant=tenant_in(scope))
        await send_json(send, orjson.dumps({"input_tokens": len(ids)}))


class MessageStream:
    """Writes a stream's events as Anthropic's."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._prepared = prepared
        self._events = MessageEvents()

    def write(self, event: StreamEvent) -> bytes:
        """The events that tell of this one."""
        return b"".join(named_event(one["type"], one) for one in self._events_of(event))

    def close(self) -> bytes:
        """Does nothing: the message has sent its end."""
        return b""

    def fail(self, error: ARTError) -> bytes:
        """The error as an event."""
        return named_event("error", anthropic_error(error, self._prepared.tenant))

    def _events_of(self, event: StreamEvent) -> Iterable[Event]:
        if isinstance(event, StreamStarted):
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
        if isinstance(event, ChoiceFinished):
            yield from self._end(event.choice)

    def _end(self, choice: StreamedChoice) -> Iterable[Event]:
        completion, prepared = choice.completion, self._prepared
        stop = stop_of(completion, choice.message, context_full=_context_full(prepared))
        usage = usage_of(len(prepared.stitched.prompt_ids), completion)
        yield from self._events.end(stop, usage)


def _message(
    prepared: PreparedRequest, completion: Completion, content: list[dict[str, Any]], stop: dict[str, Any]
) -> dict[str, Any]:
    return message_object(
        completion,
        model=prepared.request.model,
        step=prepared.target.step,
        content=content,
        stop=stop,
        input_tokens=len(prepared.stitched.prompt_ids),
    )


def _context_full(prepared: PreparedRequest) -> bool:
    request: ChatRequest = prepared.request
    return request.max_tokens is not None and prepared.max_tokens < request.max_tokens

"""Streamed chat completions put together again."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall
from openai.types.chat.chat_completion_message import FunctionCall
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)

from art.errors import ServerError

OnChunk = Callable[..., Any]
"""Called with each chunk, or, if it takes two arguments, with each chunk and the completion so far."""


async def consume_chat_completion_stream(
    stream: AsyncIterable[ChatCompletionChunk], on_chunk: OnChunk | None = None
) -> ChatCompletion:
    """The completion of a stream. `on_chunk` may raise StopIteration: the stream is closed, and what came so
    far is the completion; its choices have no `finish_reason` then.

    Raises ServerError for a stream without any chunk.
    """
    tell = _teller(on_chunk)
    completion: ChatCompletion | None = None
    async for chunk in stream:
        completion = _taken_in(completion, chunk)
        try:
            tell(chunk, completion)
        except StopIteration:
            if (close := getattr(stream, "close", None) or getattr(stream, "aclose", None)) is not None:
                await close()
            break
    return _something(completion)


def consume_sync_chat_completion_stream(
    stream: Iterable[ChatCompletionChunk], on_chunk: OnChunk | None = None
) -> ChatCompletion:
    """As `consume_chat_completion_stream`, for the client that does not need `await`."""
    tell = _teller(on_chunk)
    completion: ChatCompletion | None = None
    for chunk in stream:
        completion = _taken_in(completion, chunk)
        try:
            tell(chunk, completion)
        except StopIteration:
            if (close := getattr(stream, "close", None)) is not None:
                close()
            break
    return _something(completion)


def init_chat_completion(chunk: ChatCompletionChunk) -> ChatCompletion:
    """An empty completion with the chunk's identity. What chunks say, this first one included, is added by
    `update_chat_completion`.
    """
    return ChatCompletion(
        id=chunk.id, choices=[], created=chunk.created, model=chunk.model, object="chat.completion"
    )


def update_chat_completion(completion: ChatCompletion, chunk: ChatCompletionChunk) -> None:
    """Add what a chunk says: texts and logprobs grow, tool calls by their index; of other fields, ours and
    other servers' included, the last value counts.
    """
    for part in chunk.choices:
        _update_choice(_choice_at(completion, part.index), part)
    for name in ("usage", "service_tier", "system_fingerprint"):
        if (value := getattr(chunk, name, None)) is not None:
            setattr(completion, name, value)
    _take_extras(completion, chunk)


def _teller(on_chunk: OnChunk | None) -> Callable[[ChatCompletionChunk, ChatCompletion], Any]:
    if on_chunk is None:
        return lambda chunk, completion: None
    call = on_chunk
    try:
        inspect.signature(call).bind(None, None)
    except TypeError:
        return lambda chunk, completion: call(chunk)
    return call


def _taken_in(completion: ChatCompletion | None, chunk: ChatCompletionChunk) -> ChatCompletion:
    completion = completion or init_chat_completion(chunk)
    update_chat_completion(completion, chunk)
    return completion


def _something(completion: ChatCompletion | None) -> ChatCompletion:
    if completion is None:
        raise ServerError("the stream ended before its first chunk; ask again", status=200)
    return completion


def _choice_at(completion: ChatCompletion, index: int) -> Choice:
    for choice in completion.choices:
        if choice.index == index:
            return choice
    message = ChatCompletionMessage(role="assistant", content=None)
    # Unfinished until a chunk tells why it ended.
    choice = Choice.construct(index=index, message=message, finish_reason=None, logprobs=None)
    completion.choices.append(choice)
    completion.choices.sort(key=lambda choice: choice.index)
    return choice


def _update_choice(choice: Choice, part: ChunkChoice) -> None:
    if part.finish_reason is not None:
        choice.finish_reason = part.finish_reason
    if part.logprobs is not None:
        choice.logprobs = choice.logprobs or ChoiceLogprobs(content=None, refusal=None)
        for name in ("content", "refusal"):
            if (told := getattr(part.logprobs, name)) is not None:
                setattr(choice.logprobs, name, [*(getattr(choice.logprobs, name) or ()), *told])
    _take_extras(choice, part)
    if part.delta is not None:  # some servers leave it out of the last chunk
        _update_message(choice.message, part.delta)


def _update_message(message: ChatCompletionMessage, delta: ChoiceDelta) -> None:
    for name in ("content", "refusal"):
        if (text := getattr(delta, name)) is not None:
            setattr(message, name, (getattr(message, name) or "") + text)
    if delta.function_call is not None:
        message.function_call = message.function_call or FunctionCall(name="", arguments="")
        message.function_call.name += delta.function_call.name or ""
        message.function_call.arguments += delta.function_call.arguments or ""
    for call in delta.tool_calls or ():
        _update_tool_call(message, call)
    for name, value in (delta.model_extra or {}).items():
        # Reasoning comes in pieces, under whichever name the server gives it.
        before = getattr(message, name, None)
        both = isinstance(before, str) and isinstance(value, str)
        if value is not None:
            setattr(message, name, before + value if both else value)


def _update_tool_call(message: ChatCompletionMessage, told: ChoiceDeltaToolCall) -> None:
    message.tool_calls = message.tool_calls or []
    calls: list[Any] = message.tool_calls
    while len(calls) <= told.index:
        calls.append(
            ChatCompletionMessageFunctionToolCall(
                id="", type="function", function=Function(name="", arguments="")
            )
        )
    call = calls[told.index]
    call.id = told.id or call.id
    if told.function is not None:
        if told.function.name != call.function.name:  # some servers repeat the whole name
            call.function.name += told.function.name or ""
        call.function.arguments += told.function.arguments or ""


def _take_extras(target: Any, source: Any) -> None:
    for name, value in (source.model_extra or {}).items():
        if value is not None:
            setattr(target, name, value)


__all__ = [
    "consume_chat_completion_stream",
    "consume_sync_chat_completion_stream",
    "init_chat_completion",
    "update_chat_completion",
]

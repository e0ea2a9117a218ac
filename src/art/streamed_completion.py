"""Streamed chat completions, put together again: chunks as `openai` reads them, and the JSON of servers that
leave out or repeat what they like.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_message import FunctionCall
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)

from art.errors import ServerError

_IDENTITY = frozenset({"id", "created", "model"})
"""Fields of a completion that its first chunk with a value decides."""
_WHOLE = frozenset({"role", "id", "type"})
"""Texts that come at once; some servers repeat them in every chunk, and names too."""
_MOST_CALLS = 1024
"""Tool calls of a message: a wrong index must not fill the memory."""

OnChunk = Callable[..., Any]
"""Called with each chunk, or, if it takes two arguments, with each chunk and the completion so far."""


class IncompleteChatCompletionStreamError(ServerError, ValueError):
    """A stream that ended before its completion did: the reply is cut off, or its usage is missing."""


async def consume_chat_completion_stream(
    stream: AsyncIterable[ChatCompletionChunk],
    on_chunk: OnChunk | None = None,
    *,
    require_usage: bool = False,
) -> ChatCompletion:
    """The completion of a stream. `on_chunk` may raise StopIteration: the stream is closed, and what came so
    far is the completion; its choices have no `finish_reason` then.

    Raises IncompleteChatCompletionStreamError as `finalize_chat_completion` does.
    """
    tell = _chunk_callback(on_chunk)
    completion: ChatCompletion | None = None
    async for chunk in stream:
        completion = _updated(completion, chunk)
        try:
            tell(chunk, completion)
        except StopIteration:
            if (close := getattr(stream, "close", None) or getattr(stream, "aclose", None)) is not None:
                await close()
            return completion
    return finalize_chat_completion(completion, require_usage=require_usage)


def consume_sync_chat_completion_stream(
    stream: Iterable[ChatCompletionChunk], on_chunk: OnChunk | None = None, *, require_usage: bool = False
) -> ChatCompletion:
    """Does the same as `consume_chat_completion_stream`, for the client without `await`."""
    tell = _chunk_callback(on_chunk)
    completion: ChatCompletion | None = None
    for chunk in stream:
        completion = _updated(completion, chunk)
        try:
            tell(chunk, completion)
        except StopIteration:
            if (close := getattr(stream, "close", None)) is not None:
                close()
            return completion
    return finalize_chat_completion(completion, require_usage=require_usage)


def init_chat_completion(chunk: ChatCompletionChunk) -> ChatCompletion:
    """An empty completion with the chunk's identity. What chunks say, this first one included, is added by
    `update_chat_completion`.
    """
    return ChatCompletion(
        id=chunk.id, choices=[], created=chunk.created, model=chunk.model, object="chat.completion"
    )


def update_chat_completion(
    completion: ChatCompletion, chunk: ChatCompletionChunk | Mapping[str, Any]
) -> None:
    """Add what a chunk says: texts and lists grow, tool calls by their index; of other fields, ours and
    other servers' included, the last value counts.
    """
    fields = _fields(chunk)
    for part in map(_fields, fields.get("choices") or ()):
        _update_choice(_choice_at(completion, part.get("index") or 0), part)
    for name, value in fields.items():
        is_known = name in _IDENTITY and getattr(completion, name, None)
        if value is not None and name not in {"choices", "object"} and not is_known:
            setattr(completion, name, value)


def finalize_chat_completion(
    completion: ChatCompletion | None, *, require_usage: bool = False
) -> ChatCompletion:
    """Returns a completion whose stream has ended; None: no chunk came.

    Raises IncompleteChatCompletionStreamError for a completion without choices, for a choice without
    `finish_reason`, and with `require_usage` for one without usage.
    """
    if completion is None:
        missing = "its first chunk; ask again"
    elif not completion.choices or not all(choice.finish_reason for choice in completion.choices):
        missing = "a `finish_reason` of each choice: the reply is cut off; ask again"
    elif require_usage and completion.usage is None:
        missing = "the usage; ask with stream_options={'include_usage': True}"
    else:
        return completion
    raise IncompleteChatCompletionStreamError(f"the stream ended before {missing}", status=200)


def _chunk_callback(on_chunk: OnChunk | None) -> Callable[[ChatCompletionChunk, ChatCompletion], Any]:
    if on_chunk is None:
        return lambda chunk, completion: None
    call = on_chunk
    try:
        inspect.signature(call).bind(None, None)
    except TypeError:
        return lambda chunk, completion: call(chunk)
    return call


def _updated(completion: ChatCompletion | None, chunk: ChatCompletionChunk) -> ChatCompletion:
    completion = completion or init_chat_completion(chunk)
    update_chat_completion(completion, chunk)
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


def _update_choice(choice: Choice, part: Mapping[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, list):
            _add_pieces(choice, {name: value})  # `token_ids`: each chunk has its own
        elif value is not None and name not in {"index", "delta", "logprobs"}:
            setattr(choice, name, value)
    logprobs = {name: value for name, value in _fields(part.get("logprobs")).items() if value is not None}
    if logprobs:
        choice.logprobs = choice.logprobs or ChoiceLogprobs(content=None, refusal=None)
        _add_pieces(choice.logprobs, logprobs)
    message = choice.message
    delta = dict(_fields(part.get("delta")))  # some servers leave it out of the last chunk
    for position, call in enumerate(delta.pop("tool_calls", None) or ()):
        _update_tool_call(message, dict(_fields(call)), position)
    if old_call := _fields(delta.pop("function_call", None)):
        message.function_call = message.function_call or FunctionCall(name="", arguments="")
        _add_pieces(message.function_call, old_call)
    _add_pieces(message, delta)


def _update_tool_call(message: ChatCompletionMessage, delta: dict[str, Any], position: int) -> None:
    """position: the call's index where the server gives none."""
    function, index = _fields(delta.pop("function", None)), delta.pop("index", None)
    index = index if isinstance(index, int) else position
    if not 0 <= index < _MOST_CALLS:
        return
    message.tool_calls = message.tool_calls or []
    calls: list[Any] = message.tool_calls
    while len(calls) <= index:
        calls.append(
            ChatCompletionMessageFunctionToolCall(
                id="", type="function", function=Function(name="", arguments="")
            )
        )
    _add_pieces(calls[index], delta)
    _add_pieces(calls[index].function, function)


def _add_pieces(target: Any, pieces: Mapping[str, Any]) -> None:
    """Texts and lists are put together, under whichever name; of anything else the last one counts."""
    for name, piece in pieces.items():
        before = getattr(target, name, None)
        if piece is None or (name in _WHOLE and not piece):
            continue
        if isinstance(piece, list) and isinstance(before, list):
            before.extend(piece)
        elif isinstance(piece, list):
            setattr(target, name, list(piece))  # it grows, and the chunk's own does not
        elif name in _WHOLE or not (isinstance(piece, str) and isinstance(before, str)):
            setattr(target, name, piece)
        elif name != "name" or piece != before:
            setattr(target, name, before + piece)


def _fields(value: Any) -> Mapping[str, Any]:
    """The fields of what a server sent, as openai's client reads it or as JSON; of None, none."""
    if value is None or isinstance(value, Mapping):
        return value or {}
    return {**vars(value), **(value.model_extra or {})}

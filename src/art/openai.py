"""Chat completions in the types of `openai`: the words of a chat, and what programs do with completions.

Messages, choices and tools; streams put together again; choices of litellm's as choices of openai's (litellm
itself is not needed); replies without their logprobs, for logs and traces; and a student made to say what a
teacher said, by the request that leaves it no other choice. The student's sample then carries its own
logprobs, so that the teacher's turn can be trained by reinforcement; the server must support guided decoding
(vLLM does).

Loading this module loads the types of `openai` (about 0.3 s).
"""

from __future__ import annotations

import copy
import inspect
import json
import logging
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionMessageParam,
)
from openai.types.chat import ChatCompletionToolUnionParam as Tool
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall
from openai.types.chat.chat_completion_message import FunctionCall
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)
from pydantic import SkipValidation

from art.errors import ConfigurationError, ServerError

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

__all__ = [
    "Choice",
    "Message",
    "MessageOrChoice",
    "Messages",
    "MessagesAndChoices",
    "Tool",
    "Tools",
    "consume_chat_completion_stream",
    "consume_sync_chat_completion_stream",
    "convert_litellm_choice_to_openai",
    "freeze_tool_schema",
    "get_guided_completion_params",
    "init_chat_completion",
    "strip_logprobs",
    "update_chat_completion",
]

Message = Annotated[ChatCompletionMessageParam, SkipValidation]
"""A message as a dict. Pydantic stores it by reference: unknown keys survive."""
MessageOrChoice = Message | Choice
"""A `Choice` is a turn that is trained; a dict is context."""
Messages = list[Message]
MessagesAndChoices = list[MessageOrChoice]
Tools = list[Tool]


OnChunk = Callable[..., Any]
"""Called with each chunk, or, if it takes two arguments, with each chunk and the completion so far."""


async def consume_chat_completion_stream(
    stream: AsyncIterable[ChatCompletionChunk], on_chunk: OnChunk | None = None
) -> ChatCompletion:
    """The completion of a stream. `on_chunk` may raise StopIteration: the stream is closed, and what came so
    far is the completion; its choices have no `finish_reason` then.

    Raises ServerError for a stream without any chunk.
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
            break
    return _complete(completion)


def consume_sync_chat_completion_stream(
    stream: Iterable[ChatCompletionChunk], on_chunk: OnChunk | None = None
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
            break
    return _complete(completion)


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


def _complete(completion: ChatCompletion | None) -> ChatCompletion:
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
            if (logprobs := getattr(part.logprobs, name)) is not None:
                setattr(choice.logprobs, name, [*(getattr(choice.logprobs, name) or ()), *logprobs])
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


def _update_tool_call(message: ChatCompletionMessage, delta: ChoiceDeltaToolCall) -> None:
    message.tool_calls = message.tool_calls or []
    calls: list[Any] = message.tool_calls
    while len(calls) <= delta.index:
        calls.append(
            ChatCompletionMessageFunctionToolCall(
                id="", type="function", function=Function(name="", arguments="")
            )
        )
    call = calls[delta.index]
    call.id = delta.id or call.id
    if delta.function is not None:
        if delta.function.name != call.function.name:  # some servers repeat the whole name
            call.function.name += delta.function.name or ""
        call.function.arguments += delta.function.arguments or ""


def _take_extras(target: Any, source: Any) -> None:
    for name, value in (source.model_extra or {}).items():
        if value is not None:
            setattr(target, name, value)


FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


def convert_litellm_choice_to_openai(choice: Any) -> Choice:
    """Converts the choice to OpenAI's type, so that it can be part of a trajectory; the server's own fields
    stay.

    Raises ConfigurationError for a piece of a stream, a role other than assistant, and calls of anything but
    functions.
    """
    if not hasattr(choice, "message"):
        raise ConfigurationError(
            f"{type(choice).__name__} has no message: it is a piece of a stream; ask without `stream=True`"
        )
    message = _plain(choice.message)
    if message.get("role") != "assistant":
        raise ConfigurationError(f"the message's role is {message.get('role')!r}, not 'assistant'")
    kept = {key: value for key, value in message.items() if value is not None}
    _merge_server_fields(kept)
    kept.setdefault("content", None)
    calls = [_function_call(call) for call in kept.pop("tool_calls", ())]
    if calls:
        kept["tool_calls"] = calls
    fields = {**(getattr(choice, "model_extra", None) or {}), "index": choice.index}
    if server_fields := getattr(choice, "provider_specific_fields", None):
        fields["provider_specific_fields"] = server_fields
    _merge_server_fields(fields)
    logprobs = getattr(choice, "logprobs", None)
    reason = choice.finish_reason
    return Choice.model_validate(
        {
            **fields,
            "message": kept,
            "finish_reason": reason if reason in FINISH_REASONS else "stop",
            "logprobs": None if logprobs is None else _logprobs(logprobs),
        }
    )


def _merge_server_fields(fields: dict[str, Any]) -> None:
    """litellm puts what it does not know into a dict of its own."""
    for key, value in (fields.pop("provider_specific_fields", None) or {}).items():
        if value is not None:
            fields.setdefault(key, value)


def _function_call(call: Any) -> dict[str, Any]:
    plain = _plain(call)
    kind = plain.get("type") or "function"
    if kind != "function":
        raise ConfigurationError(f"a tool call of type {kind!r} cannot be converted; only functions can")
    return {"id": plain["id"], "type": "function", "function": _plain(plain["function"])}


def _logprobs(logprobs: Any) -> dict[str, Any]:
    plain = _plain(logprobs)
    return {"content": plain.get("content"), "refusal": plain.get("refusal")}


def _plain(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else dict(value.model_dump(mode="json"))


T = TypeVar("T")

log = logging.getLogger(__name__)


def strip_logprobs(obj: T) -> T:
    """Returns a deep copy without logprobs: keys named `logprobs` are removed, attributes of that name become
    None.

    What cannot be copied (an open socket, a lock) is returned as it is, with a warning in the log. What says
    that its copies are itself (clients, backends) is left alone.
    """
    memo: dict[int, Any] = {}
    try:
        copied = copy.deepcopy(obj, memo)
    except Exception as error:  # noqa: BLE001 - the user's objects may raise anything here, and a trace must not fail
        log.warning(
            "strip_logprobs: %s cannot be copied and keeps its logprobs: %r", type(obj).__name__, error
        )
        return obj
    ours = {id(new) for old, new in memo.items() if id(new) != old}
    _strip(copied, ours)
    return copied


def _strip(copied: Any, ours: set[int]) -> None:
    waiting = [copied]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple):
            waiting += item
            continue
        if id(item) not in ours:
            continue
        ours.discard(id(item))  # once is enough, also where things refer to each other
        if isinstance(item, dict):
            item.pop("logprobs", None)
            waiting += item.values()
        elif isinstance(item, list | set | frozenset):
            waiting += item
        else:
            waiting += _fields(item)


def _fields(item: Any) -> list[Any]:
    found: list[Any] = []
    # Pydantic keeps the fields it does not know apart.
    for fields in (getattr(item, "__dict__", None), getattr(item, "__pydantic_extra__", None)):
        if isinstance(fields, dict):
            if "logprobs" in fields:
                fields["logprobs"] = None
            found += fields.values()
    return found


def get_guided_completion_params(
    completion: ChatCompletion, base_tools: Tools | None = None
) -> tuple[list[str] | None, dict[str, Any] | str | None, list[dict[str, Any]] | None]:
    """Returns (guided_choice, tool_choice, tool_params) with which a student repeats the teacher's first
    choice.

    For a text, `guided_choice` is the only text allowed (`extra_body={"guided_choice": ...}`), and tools stay
    as they are. For a call, `tool_params` is the one tool with each argument frozen, and `tool_choice` forces
    it. Raises ConfigurationError for a call of an unknown tool, for several calls at once, and for neither
    text nor call.
    """
    message = completion.choices[0].message
    if not message.tool_calls:
        if not message.content:
            raise ConfigurationError("the teacher's message has neither text nor a tool call to repeat")
        tools = [dict(tool) for tool in base_tools] if base_tools else None
        return [message.content], "none" if tools else None, tools
    if len(message.tool_calls) > 1:
        names = ", ".join(repr(_function_of(call).name) for call in message.tool_calls)
        raise ConfigurationError(f"the teacher calls {names} in one turn, and only one call can be forced")
    function = _function_of(message.tool_calls[0])
    tool = _find_tool(base_tools or (), function.name)
    frozen = freeze_tool_schema(tool, json.loads(function.arguments or "{}"))
    return None, {"type": "function", "function": {"name": function.name}}, [frozen]


def freeze_tool_schema(tool: Mapping[str, Any], fixed_args: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an OpenAI tool whose arguments are exactly `fixed_args`: each an enum of one value, all
    required, no others allowed.
    """
    frozen: dict[str, Any] = copy.deepcopy(dict(tool))
    schema = frozen["function"].setdefault("parameters", {})
    known = schema.get("properties", {})
    schema["type"] = "object"
    schema["properties"] = {
        name: {**_enum_fields(known.get(name, {})), "enum": [value]} for name, value in fixed_args.items()
    }
    schema["required"] = list(fixed_args)
    schema["additionalProperties"] = False
    return frozen


def _enum_fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields allowed beside the enum; bounds and the like add nothing."""
    return {key: schema[key] for key in ("type", "description", "title") if key in schema}


def _function_of(call: Any) -> Any:
    if getattr(call, "type", "function") != "function":
        raise ConfigurationError(
            f"the teacher calls a tool of type {call.type!r}; only functions can be forced"
        )
    return call.function


def _find_tool(tools: Iterable[Any], name: str) -> Mapping[str, Any]:
    known = {tool["function"]["name"]: tool for tool in tools}
    if name not in known:
        listed = ", ".join(map(repr, known)) or "none"
        raise ConfigurationError(f"the teacher calls {name!r}, which is not among base_tools: {listed}")
    tool: Mapping[str, Any] = known[name]
    return tool

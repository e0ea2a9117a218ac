"""A model call as a log has it, and how requests, responses, messages and tools of logs are read.

`REQUEST_LOGS` has the formats in which a record is a call: the shape of OpenAI's requests under several names
(OpenPipe, LiteLLM, stored completions), plain conversations, and Langfuse. `trace_spans.py` reads
traces. A record may also hold a score of a call that another record has, or no call that can be used, with
the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple, cast

from art.client.sft.sft_rows import ROLES
from art.errors import UnreadableFileError
from art.process.foreign_files import (
    MOST_BYTES,
    check_depth,
    open_foreign,
    parse_json,
    read_lines,
    too_deep,
    too_long,
)

Message = dict[str, Any]
"""An OpenAI chat message."""


class LoggedReply(NamedTuple):
    """The message of a model, and why it ended, where the log tells."""

    message: Message
    finish_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoggedCall:
    """A request to a model and its replies, in the words of OpenAI's chat completions."""

    messages: list[Message]
    replies: list[LoggedReply]
    tools: list[Any] | None = None
    tool_choice: Any = None
    model: str | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    time: float | None = None
    """Seconds since the epoch."""
    keys: tuple[str, ...] = ()
    """What a `LoggedScore` may name: the call itself, the span above it, its trace."""
    where: str = field(default="", compare=False)
    """File and line, for messages."""


@dataclass(frozen=True)
class LoggedScore:
    """A number that says how good the calls under a key are."""

    key: str
    name: str
    value: float


@dataclass(frozen=True)
class LeftOut:
    """A record without a call that can be used. broken: it should have had one."""

    where: str
    reason: str
    detail: str = ""
    broken: bool = False


Found = LoggedCall | LoggedScore | LeftOut

FAILED, NO_CALL, NO_TEXTS = "failed request", "not a model call", "texts were not recorded"
OTHER_API, BROKEN_LINE, UNREADABLE = "not a chat completion", "broken line", "unreadable record"
BROKEN_FILE = "broken file"


class NotUsable(Exception):
    """Ends the reading of one record, with the reason and the detail of its `LeftOut`."""

    def __init__(self, reason: str, detail: str = "", *, broken: bool = False) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail, self.broken = reason, detail, broken


def unreadable(detail: str) -> NotUsable:
    return NotUsable(UNREADABLE, detail, broken=True)


Document = Mapping[str, Any]
_REQUESTS = ("request", "input", "reqPayload", "req_payload", "request_body", "requestBody", "kwargs")
_RESPONSES = (
    "response", "output", "respPayload", "resp_payload", "response_body", "responseBody", "completion"
)  # fmt: skip
_TIMES = (
    "requestedAt", "requested_at", "startTime", "start_time", "created", "created_at", "createdAt",
    "timestamp", "time",
)  # fmt: skip
_CHUNK = 1 << 20
_LINES_TRIED = 4
"""The first lines of a file that begins like an object: it is JSON Lines if one is an object itself."""
_TAGS = ("tags", "metadata", "request_tags")


def usable(where: str, found: Iterator[Found]) -> Iterator[Found]:
    """Yields what is found; where a record cannot be used, its `LeftOut`."""
    try:
        yield from found
    except NotUsable as reason:
        yield LeftOut(where, reason.reason, reason.detail, reason.broken)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        detail = f"its values are of other kinds than the format has ({error})"
        yield LeftOut(where, UNREADABLE, detail, broken=True)


def read_documents(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields each place of a file and its JSON value, or the `LeftOut` of what is none.

    A piece is a line of JSON Lines, an item of an array, or an object that fills the file; `.gz` is unpacked.
    """
    try:
        with open_foreign(path) as file:
            begins = _first_byte(file)
        if begins == b"[" or (begins == b"{" and not _has_lines(path)):
            yield from _values(path, in_array=begins == b"[")
        else:
            yield from _lines(path)
    except UnreadableFileError as error:
        detail = f"{error}; the rest of the file is left out"
        yield str(path), LeftOut(str(path), BROKEN_FILE, detail, broken=True)


def _first_byte(file: IO[bytes]) -> bytes:
    while piece := file.read(_CHUNK):
        if text := piece.removeprefix(b"\xef\xbb\xbf").lstrip():
            return text[:1]
    return b""


def _has_lines(path: Path) -> bool:
    """Returns whether one of the first lines is an object by itself: the others may be broken."""
    with open_foreign(path) as file:
        for _, line in islice(read_lines(file), _LINES_TRIED):
            with suppress(ValueError):
                if line is not None and isinstance(parse_json(line.decode("utf-8-sig")), dict):
                    return True
    return False


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with open_foreign(path) as file:
        for number, line in read_lines(file):
            where = f"{path}, line {number}"
            try:
                if line is None:
                    raise too_long()
                value = parse_json(line.decode("utf-8-sig")) if line.strip() else None
            except ValueError as error:
                value = _broken(where, error, "correct or delete the line")
            if line is None or line.strip():
                yield where, value


def _values(path: Path, *, in_array: bool) -> Iterator[tuple[str, Any]]:
    """Yields the items of an array, or the values that follow one another."""
    decoder, text, line, ended = json.JSONDecoder(), "", 1, False
    skipped = " \t\r\n," if in_array else " \t\r\n"
    with open_foreign(path) as binary, _decoded(binary) as file:
        inside = not in_array
        while True:
            rest = text.lstrip(skipped)
            line += text.count("\n", 0, len(text) - len(rest))
            text, where = rest, f"{path}, line {line}"
            if not inside and text:
                text, inside = text[1:], True
                continue
            if inside and in_array and text.startswith("]"):
                return
            try:
                value, end = decoder.raw_decode(text) if text else (None, 0)
                check_depth(value)
            except RecursionError:
                raise too_deep() from None
            except UnreadableFileError as error:
                value = _broken(where, error, "correct or delete it")
            except ValueError as error:
                end = 0
                if ended:
                    hint = "the rest of the file is left out: correct it and import again"
                    yield where, _broken(where, error, hint)
                    return
            if end:
                yield where, value
                line += text.count("\n", 0, end)
                text = text[end:]
                continue
            if ended:
                return
            if len(text) > MOST_BYTES:
                raise too_long()
            try:
                piece = file.read(max(_CHUNK, len(text)))
            except UnicodeDecodeError as error:
                yield where, _broken(where, error, "the rest of the file is left out: store it as UTF-8")
                return
            text, ended = text + piece, not piece


def _decoded(binary: IO[bytes]) -> IO[str]:
    return TextIOWrapper(cast(Any, binary), encoding="utf-8-sig")


def _broken(where: str, error: Exception, remedy: str) -> LeftOut:
    return LeftOut(where, BROKEN_LINE, f"not valid JSON ({error}); {remedy}", broken=True)


def first_value(values: Document, names: Sequence[str]) -> Any:
    """Returns the value of the first of these keys that is not null."""
    return next((values[name] for name in names if values.get(name) is not None), None)


def parsed(value: Any) -> Any:
    """Returns the value of a text that is JSON of an object or a list; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value


def seconds_of(value: Any) -> float | None:
    """Returns a time in seconds since the epoch: of a number of seconds, milliseconds, microseconds or
    nanoseconds, and of an ISO text, which is in UTC unless it says otherwise.
    """
    if isinstance(value, str) and not value.isdecimal():
        try:
            moment = datetime.fromisoformat(value)
            return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
        except (ValueError, OverflowError):
            return None
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    while 1e11 < seconds < 1e21:
        seconds /= 1000
    return seconds if 0 <= seconds <= 1e11 else None


def tags_of(*values: Any) -> dict[str, Any]:
    """Returns tags by name: of objects, and of lists of names, whose value is True."""
    tags: dict[str, Any] = {}
    for given in map(parsed, values):
        if isinstance(given, Mapping):
            tags |= {str(name): value for name, value in given.items() if value not in (None, "", {}, [])}
        elif isinstance(given, list):
            tags |= {name: True for name in given if isinstance(name, str)}
    return tags


def read_message(value: Any, place: str) -> Message:
    """Returns a message without its nulls. An older `function_call` becomes a tool call.

    Raises NotUsable for what is no message.
    """
    if not isinstance(value, Mapping):
        raise unreadable(f"{place} is {shortened(value)}, not a message")
    message = {str(name): given for name, given in value.items() if given is not None}
    if message.get("role") == "function":
        message = {**message, "role": "tool"}
    if str(message.get("role")).lower() not in ROLES:
        raise unreadable(f"{place} is of role {message.get('role')!r}; known: {', '.join(ROLES)}")
    call = message.pop("function_call", None)
    if isinstance(call, Mapping) and not message.get("tool_calls"):
        message["tool_calls"] = [{"type": "function", "function": dict(call)}]
    for name in ("tool_calls", "annotations"):
        if message.get(name) == []:
            del message[name]
    content = message.get("content", "")
    if not isinstance(content, str) and not (
        isinstance(content, list) and all(isinstance(one, Mapping) for one in content)
    ):
        raise unreadable(f"the content of {place} is {shortened(message['content'])}, not a text or parts")
    if "tool_calls" in message:
        message["tool_calls"] = [read_call(call) for call in message["tool_calls"]]
    return message


def read_call(call: Any) -> Message:
    """Returns a tool call in OpenAI's form, its arguments as a text. Raises NotUsable."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not function.get("name"):
        if isinstance(call, Mapping) and call.get("type", "function") not in ("function", "tool_call"):
            return dict(call)  # a custom tool's
        raise unreadable(f"a tool call is {shortened(call)}: it names no function")
    arguments = first_value(function, ("arguments", "args"))
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    openai_function = {"name": function["name"], "arguments": text}
    named = {"id": call["id"]} if call.get("id") else {}
    return {**named, "type": "function", "function": openai_function}


def read_messages(value: Any, place: str) -> list[Message]:
    """Returns the messages of a list; a text is one of the user's. Raises NotUsable."""
    given = parsed(value)
    if isinstance(value, str) and not (
        isinstance(given, list) and all(isinstance(one, dict) for one in given)
    ):
        return [{"role": "user", "content": value}]
    if not isinstance(given, list) or not given:
        raise unreadable(f"{place} is {shortened(given)}, not a list of messages")
    return [read_message(one, f"{place}[{number}]") for number, one in enumerate(given)]


def read_tools(value: Any, functions: Any = None) -> list[Any] | None:
    """Returns tools in OpenAI's form, also of definitions without the object `function` around them."""
    given = parsed(value) or [{"function": one} for one in parsed(functions) or ()]
    if not isinstance(given, list):
        return None
    return [_tool(one) for one in map(parsed, given)] or None


def _tool(tool: Any) -> Any:
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        return tool
    if isinstance(tool.get("function"), Mapping):
        return {"type": "function", **tool}
    schema = first_value(tool, ("parameters", "input_schema"))
    named = {"name": tool.get("name"), "description": tool.get("description"), "parameters": parsed(schema)}
    return {"type": "function", "function": {name: one for name, one in named.items() if one is not None}}


def read_replies(value: Any) -> list[LoggedReply]:
    """Returns the replies of a response: of a chat completion, one in a `body`, a message, or a text.

    Raises NotUsable where it has none.
    """
    given = parsed(value)
    if isinstance(given, Mapping) and isinstance(parsed(given.get("body")), Mapping):
        given = parsed(given["body"])
    if isinstance(value, str) and not _is_response(given):
        given = value  # what the model said is JSON
    if isinstance(given, str) and given:
        return [LoggedReply({"role": "assistant", "content": given})]
    if isinstance(given, list) and given:
        if any(isinstance(one, Mapping) and one.get("object") == "chat.completion.chunk" for one in given):
            raise unreadable(f"the reply is {len(given)} pieces of a stream; join them to a chat completion")
        said = [one for one in read_messages(given, "output") if one["role"] == "assistant"]
        given = said[-1] if said else None
    if not isinstance(given, Mapping) or not given:
        raise NotUsable(FAILED, "there is no reply")
    if isinstance(given.get("choices"), list) and given["choices"]:
        return [_choice(one, number) for number, one in enumerate(given["choices"])]
    if given.get("error") is not None:
        raise NotUsable(FAILED, shortened(given["error"]))
    if "output" in given or "candidates" in given or given.get("type") == "message":
        raise NotUsable(OTHER_API, f"the reply has the keys {shown_keys(given)}")
    if not {"role", "content", "tool_calls"} & set(given):
        raise NotUsable(FAILED, f"the reply has the keys {shown_keys(given)}")
    return [LoggedReply(read_message({"role": "assistant", **given}, "output"))]


def _is_response(value: Any) -> bool:
    if isinstance(value, list):
        return any(isinstance(one, Mapping) and ("role" in one or "object" in one) for one in value)
    keys = ("choices", "error", "role", "content", "tool_calls", "output", "candidates")
    return isinstance(value, Mapping) and any(name in value for name in keys)


def _choice(choice: Any, number: int) -> LoggedReply:
    if not isinstance(choice, Mapping) or not isinstance(choice.get("message"), Mapping):
        if isinstance(choice, Mapping) and "text" in choice:
            raise NotUsable(OTHER_API, "a text completion")
        raise unreadable(f"choices[{number}] is {shortened(choice)}: it has no message")
    message = read_message({"role": "assistant", **choice["message"]}, f"choices[{number}].message")
    return LoggedReply(message, choice.get("finish_reason"))


def shown_keys(document: Document) -> str:
    names = [repr(str(name)) for name in document]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return (", ".join(names[:12]) or "(none)") + more


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _request_call(document: Document, where: str) -> Iterator[Found]:
    """A request and its response, under any of the names that logs give them."""
    request, response = parsed(first_value(document, _REQUESTS)), first_value(document, _RESPONSES)
    if isinstance(request, list):
        request = {"messages": request}
    if not isinstance(request, Mapping):
        raise unreadable(f"the request is {shortened(request)}, not an object")
    if isinstance(parsed(request.get("body")), Mapping):
        request = parsed(request["body"])
    status = first_value(document, ("statusCode", "status_code", "status"))
    errors = (document.get(name) for name in ("error", "errorMessage", "error_message"))
    error = next((one for one in errors if one), None)
    if error is not None or (isinstance(status, int) and status >= 400):
        raise NotUsable(FAILED, shortened(error) if error else f"status {status}")
    yield _call(request, response, document, where)


def _call(request: Document, response: Any, document: Document, where: str) -> LoggedCall:
    if request.get("messages") is None:
        raise NotUsable(OTHER_API, f"the request has the keys {shown_keys(request)}")
    reply = parsed(response)
    answer = reply if isinstance(reply, Mapping) else {}
    body = parsed(answer.get("body"))
    answer = body if isinstance(body, Mapping) else answer
    time = seconds_of(first_value(document, _TIMES))
    return LoggedCall(
        messages=read_messages(request["messages"], "messages"),
        replies=read_replies(response),
        tools=read_tools(request.get("tools"), request.get("functions")),
        tool_choice=request.get("tool_choice"),
        model=first_value({"asked": request.get("model"), "used": answer.get("model")}, ("asked", "used"))
        or document.get("model"),
        tags=tags_of(request.get("metadata"), *(document.get(name) for name in _TAGS)),
        time=seconds_of(answer.get("created")) if time is None else time,
        where=where,
    )


def _stored_completion(document: Document, where: str) -> Iterator[Found]:
    """A chat completion with the messages of its request beside its choices."""
    yield _call(document, document, document, where)


def _litellm(document: Document, where: str) -> Iterator[Found]:
    if document.get("status") == "failure":
        raise NotUsable(FAILED, shortened(document.get("error_str")))
    parameters = parsed(document.get("model_parameters")) or {}
    request = {**parameters, "messages": document.get("messages")}
    yield _call({**request, "model": document.get("model")}, document.get("response"), document, where)


def _row(document: Document, where: str) -> Iterator[Found]:
    """A conversation that ends with the reply, as in files for fine-tuning."""
    messages = read_messages(document["messages"], "messages")
    if messages[-1]["role"] != "assistant":
        raise unreadable(f"the last message is of role {messages[-1]['role']!r}, not an assistant's reply")
    tools = read_tools(document.get("tools"), document.get("functions"))
    yield LoggedCall(
        messages=messages[:-1],
        replies=[LoggedReply(messages[-1])],
        tools=tools,
        tool_choice=document.get("tool_choice"),
        model=document.get("model"),
        tags=tags_of(*(document.get(name) for name in _TAGS)),
        time=seconds_of(first_value(document, _TIMES)),
        where=where,
    )


def _langfuse(document: Document, where: str) -> Iterator[Found]:
    """An observation, a score, a trace with its observations, or a page of any of them."""
    inner = document.get("trace")
    trace = inner if isinstance(inner, Mapping) else document
    below = first_value(document, ("observations", "data")) or trace.get("observations")
    if isinstance(below, list):
        shared = {name: trace.get(name) for name in ("tags", "sessionId", "userId", "release")}
        scores = [*(document.get("scores") or ()), *(trace.get("scores") or ())]
        for number, one in enumerate([*below, *{id(score): score for score in scores}.values()]):
            place = f"{where}, item {number}"
            if isinstance(one, Mapping):
                own = {name: value for name, value in one.items() if value is not None}
                yield from usable(place, _langfuse_item({**shared, **own}, place))
    else:
        yield from _langfuse_item(document, where)


def _langfuse_item(item: Document, where: str) -> Iterator[Found]:
    trace = first_value(item, ("traceId", "trace_id"))
    kind, observation = item.get("type"), first_value(item, ("observationId", "observation_id"))
    if kind is None and "name" in item and "value" in item:
        value = item["value"]
        if isinstance(value, int | float) and item.get("dataType", item.get("data_type")) != "TEXT":
            key = f"trace:{trace}" if not observation else f"span:{trace}/{observation}"
            yield LoggedScore(key, str(item["name"]), float(value))
        return
    if str(kind).upper() != "GENERATION":
        raise NotUsable(NO_CALL, f"an observation of type {kind}")
    if item.get("level") == "ERROR":
        raise NotUsable(FAILED, shortened(first_value(item, ("statusMessage", "status_message"))))
    given, output = parsed(item.get("input")), parsed(item.get("output"))
    if given in (None, "") or output in (None, ""):
        raise NotUsable(NO_TEXTS, "export with the fields of input and output")
    parameters = parsed(first_value(item, ("modelParameters", "model_parameters"))) or {}
    request = given if isinstance(given, Mapping) and "messages" in given else {"messages": given}
    defined = first_value(item, ("toolDefinitions", "tool_definitions"))
    parent = first_value(item, ("parentObservationId", "parent_observation_id"))
    model = first_value(item, ("model", "providedModelName", "provided_model_name"))
    names = ("name", "traceName", "trace_name", "environment", "release", "userId", "user_id")
    yield LoggedCall(
        messages=read_messages(request["messages"], "input"),
        replies=_with_calls(read_replies(item["output"]), first_value(item, ("toolCalls", "tool_calls"))),
        tools=read_tools(request.get("tools"), request.get("functions"))
        or read_tools(parameters.get("tools"))
        or _defined_tools(defined),
        tool_choice=first_value({**parameters, **request}, ("tool_choice", "toolChoice")),
        model=model or None,
        tags=tags_of(item.get("metadata"), item.get("tags"), {name: item.get(name) for name in names}),
        time=seconds_of(first_value(item, ("startTime", "start_time"))),
        keys=(f"span:{trace}/{item.get('id')}", f"span:{trace}/{parent}", f"trace:{trace}"),
        where=where,
    )


def _with_calls(replies: list[LoggedReply], calls: Any) -> list[LoggedReply]:
    """Adds the calls that Langfuse keeps beside an output that is a text."""
    found = [one for one in map(parsed, calls or ()) if isinstance(one, Mapping)]
    if len(replies) != 1 or not found or replies[0].message.get("tool_calls"):
        return replies
    return [LoggedReply({**replies[0].message, "tool_calls": [read_call(one) for one in found]})]


def _defined_tools(defined: Any) -> list[Any] | None:
    """Tools by name, each a schema, as Langfuse keeps them."""
    if not isinstance(defined, Mapping):
        return read_tools(defined)
    tools = ((name, parsed(one)) for name, one in defined.items())
    return read_tools([{"name": name, **one} for name, one in tools if isinstance(one, Mapping)])


class LogFormat(NamedTuple):
    """The look of a format's records, in words and to a program, and what reads one."""

    looks: str
    fits: Callable[[Document], bool]
    read: Callable[[Document, str], Iterator[Found]]


def has_keys(*groups: Sequence[str]) -> Callable[[Document], bool]:
    """Returns a test of whether a document has a key of each group."""
    return lambda document: all(any(name in document for name in group) for group in groups)


def _fits_langfuse(document: Document) -> bool:
    below = document.get("data")
    if isinstance(below, list) and below and isinstance(below[0], Mapping):
        return _fits_langfuse(below[0])
    traced = has_keys(("traceId", "trace_id"))(document)
    return "observations" in document or (traced and ("type" in document or "value" in document))


REQUEST_LOGS: Mapping[str, LogFormat] = MappingProxyType(
    {
        "langfuse": LogFormat(
            'Langfuse exports: {"type": "GENERATION", "traceId": ..., "input": ..., "output": ...}',
            _fits_langfuse,
            _langfuse,
        ),
        "openpipe": LogFormat(
            'OpenPipe: {"input": ..., "output": ..., "tags": ...} or {"reqPayload": ..., "respPayload": ...}',
            lambda document: has_keys(("input",), ("output",))(document) or "reqPayload" in document,
            _request_call,
        ),
        "litellm": LogFormat(
            'LiteLLM: {"call_type": ..., "messages": [...], "response": {...}, "model_parameters": {...}}',
            has_keys(("messages",), ("response",)),
            _litellm,
        ),
        "openai": LogFormat(
            'requests with responses: {"request": {"messages": [...]}, "response": {"choices": [...]}}',
            has_keys(_REQUESTS, _RESPONSES),
            _request_call,
        ),
        "stored": LogFormat(
            'chat completions with their messages: {"messages": [...], "choices": [...]}',
            has_keys(("messages",), ("choices",)),
            _stored_completion,
        ),
        "messages": LogFormat(
            'conversations: {"messages": [...]}, the last message an assistant\'s',
            has_keys(("messages",)),
            _row,
        ),
    }
)
"""Name -> format, in the order in which "auto" tries them."""

"""An Anthropic request (`/v1/messages`) is read into the body of a chat completion.

Content blocks become chat messages: text, calls and their results, thinking; the rest is refused. Each field
acts, is refused by its name, or `OTHER_FIELDS` says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from pydantic import Field

from art.server.chat.chat_request import EFFORT
from art.server.chat.messages import MOST_MESSAGES
from art.server.chat.request_fields import OTHER_FIELDS, RequestField, RequestSchema, check_object
from art.wire.request_values import (
    AT_LEAST_ONE,
    FLAG,
    NAME,
    OBJECT,
    TEXT,
    ByHand,
    Idle,
    Number,
    Schema,
    Values,
    Whole,
    refuse,
)
from art.wire.sampling import PARAMETERS

_FIELDS = {
    "text": {"type", "text", "cache_control", "citations"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
}
_OF_ROLE = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking"),
}
_ERROR = "Error: "
_BETWEEN = "\n"
"""Stands between the text blocks of one message, which are paragraphs of their own."""


def read_conversation(value: Any) -> list[dict[str, Any]]:
    """Chat messages of `messages`. Raises: RequestError naming the block."""
    if not isinstance(value, list) or not value:
        refuse("messages must be a list of at least one message", "messages")
    if len(value) > MOST_MESSAGES:
        refuse(f"{len(value)} messages are more than {MOST_MESSAGES}", "messages", "context_length_exceeded")
    read: list[dict[str, Any]] = []
    for index, message in enumerate(value):
        read += _message(message, f"messages[{index}]")
    if read and read[-1]["role"] == "assistant":
        refuse(
            "the last message is the assistant's: continuing it (prefill) is not supported; end with the "
            "user's message",
            f"messages[{len(value) - 1}]",
            "unsupported_parameter",
        )
    return read


def read_text(value: Any, at: str) -> str:
    """The text of a string or of text blocks. Raises: RequestError naming the block."""
    if isinstance(value, str):
        return value
    return _BETWEEN.join(_text(block, where) for block, where in _blocks(value, "system", at))


def _message(message: Any, at: str) -> list[dict[str, Any]]:
    if not isinstance(message, dict):
        refuse(f"{at} must be an object with role and content", at)
    if unknown := sorted(message.keys() - {"role", "content"}):
        refuse(f"{at}.{unknown[0]} is unknown; known: role, content", f"{at}.{unknown[0]}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _OF_ROLE:
        refuse(f"{at}.role must be one of {', '.join(_OF_ROLE)}", f"{at}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = _blocks(content, role, f"{at}.content")
    if role == "assistant":
        return [_reply(blocks)]
    return _messages_of(role, blocks)


def _blocks(content: Any, role: str, at: str) -> list[tuple[dict[str, Any], str]]:
    """The checked blocks, each with its place in the request."""
    if not isinstance(content, list):
        refuse(f"{at} must be a string or a list of content blocks", at)
    return [(_checked(block, role, f"{at}[{n}]"), f"{at}[{n}]") for n, block in enumerate(content)]


def _checked(block: Any, role: str, at: str) -> dict[str, Any]:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        refuse(f"{at} must be an object with a type", at)
    kind = block["type"]
    if kind not in _OF_ROLE[role]:
        refuse(
            f"{at} is a block of type {kind[:100]!r}; blocks supported here: {', '.join(_OF_ROLE[role])}",
            at,
            "unsupported_parameter",
        )
    known = _FIELDS[kind]
    for name in block.keys() - known:
        if block[name] is not None:
            refuse(f"{at}.{name[:100]} is unknown; known: {', '.join(sorted(known))}", f"{at}.{name[:100]}")
    check_cache_control(block.get("cache_control"), f"{at}.cache_control")
    return block


def check_cache_control(value: Any, at: str) -> None:
    """Prefixes are reused as they can be: the field is understood, and changes no reply."""
    if value is not None and (not isinstance(value, dict) or value.get("type") != "ephemeral"):
        refuse(f"{at} must be an object of type 'ephemeral'", at)


def _text(block: Mapping[str, Any], at: str) -> str:
    if block.get("citations"):
        refuse(f"{at}.citations are not supported", f"{at}.citations", "unsupported_parameter")
    return _string(block, "text", at)


def _string(block: Mapping[str, Any], name: str, at: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        refuse(f"{at}.{name} must be a string", f"{at}.{name}")
    return value


def _reply(blocks: list[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    # Its one text block holds the content as it was sampled, so nothing may come between several.
    texts, thoughts, calls = [], [], []
    for block, at in blocks:
        if block["type"] == "text":
            texts.append(_text(block, at))
        elif block["type"] == "thinking":
            thoughts.append(_string(block, "thinking", at))
        else:
            calls.append(_call(block, at))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    caller = block.get("caller")
    if caller is not None and (not isinstance(caller, dict) or caller.get("type") != "direct"):
        refuse(f"{at}.caller must be an object of type 'direct'", f"{at}.caller", "unsupported_parameter")
    given = block.get("input")
    if not isinstance(given, dict):
        refuse(f"{at}.input must be an object", f"{at}.input")
    try:
        arguments = orjson.dumps(given).decode()
    except orjson.JSONEncodeError as error:
        refuse(f"{at}.input cannot be written as JSON: {error}", f"{at}.input")
    function = {"name": _string(block, "name", at), "arguments": arguments}
    return {"id": _string(block, "id", at), "type": "function", "function": function}


def _messages_of(role: str, blocks: list[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """Text stays together as one message; each result of a call is a message of its own."""
    messages: list[dict[str, Any]] = []
    texts: list[str] = []
    for block, at in blocks:
        if block["type"] == "text":
            texts.append(_text(block, at))
            continue
        if texts:
            messages.append({"role": role, "content": _BETWEEN.join(texts)})
            texts = []
        messages.append(_result(block, at))
    if texts or not messages:
        messages.append({"role": role, "content": _BETWEEN.join(texts)})
    return messages


def _result(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    content = block.get("content")
    text = "" if content is None else read_text(content, f"{at}.content")
    failed = block.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        refuse(f"{at}.is_error must be true or false", f"{at}.is_error")
    if failed and not text.lower().startswith("error"):
        # Chat formats have no word for a failed call but its text.
        text = _ERROR + text
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", at), "content": text}


Chat = dict[str, Any]

_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_NO_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def chat_body(body: Any, *, counting: bool = False) -> Chat:
    """The chat body that asks for the same. `counting`: of `/v1/messages/count_tokens`.

    Raises: RequestError naming the field of the request.
    """
    check_object(body)
    schema = COUNT_TOKENS if counting else MESSAGES
    for name in schema.required:
        if body.get(name) is None:
            refuse(f"{name!r} is missing", name, "missing_parameter")
    chat: Chat = {"messages": read_conversation(body["messages"])}
    schema.read(chat, body)
    return chat


def _put(chat: Chat, name: str, value: Any) -> None:
    chat[name] = value


def _nothing(chat: Chat, name: str, value: Any) -> None:
    """Ignores a field that was read before, or has no effect."""


def _system(chat: Chat, name: str, value: Any) -> None:
    text = read_text(value, name)
    if text:
        chat["messages"] = [{"role": "system", "content": text}, *chat["messages"]]


def _stop_sequences(chat: Chat, name: str, value: list[str]) -> None:
    chat["stop"] = value


def _metadata(chat: Chat, name: str, value: Any) -> None:
    if not isinstance(value, dict) or value.keys() - {"user_id"}:
        refuse("metadata must be an object with user_id alone", name)
    user = value.get("user_id")
    if user is not None:
        if not isinstance(user, str):
            refuse("metadata.user_id must be a string", "metadata.user_id")
        chat["metadata"] = {"user_id": user}


def _thinking(chat: Chat, name: str, value: Any) -> None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "disabled":
        chat["chat_template_kwargs"] = {**chat.get("chat_template_kwargs", {}), "enable_thinking": False}
    elif kind == "adaptive":
        # The model thinks as it was taught to: that is what every format does without being told.
        if value.get("display") not in (None, "summarized"):
            refuse("thinking.display can only be 'summarized': thinking is always shown", "thinking.display")
    else:
        refuse(
            "thinking must be {'type': 'adaptive'} or {'type': 'disabled'}; a budget of thinking cannot be "
            "kept here: limit the whole reply by max_tokens",
            name,
            _UNSUPPORTED,
        )


def _output_config(chat: Chat, name: str, value: dict[str, Any]) -> None:
    for option, wanted in value.items():
        if option not in ("format", "effort") and wanted is not None:
            at = f"output_config.{option[:100]}"
            refuse(f"{at} is not supported; supported: format and effort", at, _UNSUPPORTED)
    effort = value.get("effort")
    if effort is not None:
        chat["reasoning_effort"] = EFFORT.read("output_config.effort", effort, quoted=0)
    wanted = value.get("format")
    if wanted is None:
        return
    schema = wanted.get("schema") if isinstance(wanted, dict) else None
    if not isinstance(schema, dict) or wanted.get("type") != "json_schema":
        refuse(
            "output_config.format must be {'type': 'json_schema', 'schema': {...}}", "output_config.format"
        )
    named = {"name": "output", "schema": schema, "strict": True}
    chat["response_format"] = {"type": "json_schema", "json_schema": named}


def _tools(chat: Chat, name: str, value: list[Any]) -> None:
    chat["tools"] = [_tool(tool, f"tools[{n}]") for n, tool in enumerate(value)]


def _tool(tool: Any, at: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        refuse(f"{at} must be an object with name and input_schema", at)
    kind = tool.get("type")
    if kind not in (None, "custom"):
        refuse(
            f"{at} is the server tool {str(kind)[:100]!r}, which runs at Anthropic; define it with name and "
            "input_schema, and answer its calls",
            at,
            _UNSUPPORTED,
        )
    for option, asked in tool.items():
        idle = _IDLE_OF_TOOL.get(option)
        if option not in _OF_TOOL and asked is not None and (idle is None or asked not in idle):
            where = f"{at}.{option[:100]}"
            refuse(f"{where} is not supported; supported: {', '.join(sorted(_OF_TOOL))}", where, _UNSUPPORTED)
    check_cache_control(tool.get("cache_control"), f"{at}.cache_control")
    if not isinstance(tool.get("name"), str):
        refuse(f"{at}.name must be a string", f"{at}.name")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        refuse(f"{at}.input_schema must be a JSON schema object", f"{at}.input_schema")
    function: dict[str, Any] = {"name": tool["name"]}
    if tool.get("description") is not None:
        if not isinstance(tool["description"], str):
            refuse(f"{at}.description must be a string", f"{at}.description")
        function["description"] = tool["description"]
    function["parameters"] = schema or _NO_SCHEMA
    if tool.get("strict"):
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(chat: Chat, name: str, value: Any) -> None:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in _TOOL_CHOICES:
        chat["tool_choice"] = _TOOL_CHOICES[kind]
    elif kind == "tool":
        if not isinstance(value.get("name"), str):
            refuse("tool_choice.name must be the name of a tool", "tool_choice.name")
        chat["tool_choice"] = {"type": "function", "function": {"name": value["name"]}}
    else:
        refuse("tool_choice.type must be one of auto, any, tool, none", "tool_choice.type")
    alone = value.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        at = "tool_choice.disable_parallel_tool_use"
        refuse(f"{at} must be true or false", at)
    if alone:
        chat["parallel_tool_calls"] = False


def _thread(chat: Chat, name: str, value: Any) -> None:
    # The SDK knows this code, and sends the whole conversation then.
    refuse(
        "thread is not supported: send the whole conversation; its ids are found again",
        name,
        "thread_unsupported_request",
    )


def _cache_control(chat: Chat, name: str, value: Any) -> None:
    check_cache_control(value, name)


def _template_arguments(chat: Chat, name: str, value: dict[str, Any]) -> None:
    chat[name] = {**value, **chat.get(name, {})}


_UNSUPPORTED = "unsupported_parameter"
_OF_TOOL = frozenset({"type", "name", "description", "input_schema", "cache_control", "strict"})
_IDLE_OF_TOOL: dict[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "eager_input_streaming": (True, False),
    "input_examples": ([],),
}
"""Fields of a tool with the values that ask for nothing."""


class _IdleHere(Idle):
    """Refused in this dialect's words."""

    def read(self, name: str, value: Any, *, quoted: int = 0) -> None:
        if value not in (self.accepted or ()):
            refuse(f"{name} is not supported here but as {(self.accepted or ())[0]!r}", name, _UNSUPPORTED)


def _object(required: str, **fields: Schema) -> Schema:
    """An object of these fields and others. `required`: their names, with blanks between."""
    return {"type": "object", "properties": fields, "required": required.split()}


_BLOCKS: Schema = {"anyOf": [TEXT.schema, {"type": "array", "items": _object("type", type=TEXT.schema)}]}
_TURN = {
    **_object("role content", role={"enum": list(_OF_ROLE)}, content=_BLOCKS),
    "additionalProperties": False,
}
_TURNS = {"type": "array", "items": _TURN, "minItems": 1, "maxItems": MOST_MESSAGES}
_TOOL = _object("name input_schema", name=TEXT.schema, description=TEXT.schema, input_schema=OBJECT.schema)
_CHOICE = _object("type", type={"enum": [*_TOOL_CHOICES, "tool"]}, name=TEXT.schema)
_USER = {"user_id": {"anyOf": [TEXT.schema, {"type": "null"}]}}
_STOPS = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)]

_FIELDS_OF_BODIES: dict[str, RequestField] = {
    "model": RequestField(NAME, _put),
    "messages": RequestField(ByHand(_TURNS), _nothing),
    "max_tokens": RequestField(AT_LEAST_ONE, _put),
    "system": RequestField(ByHand(_BLOCKS), _system),
    "stream": RequestField(FLAG, _put),
    "temperature": RequestField(Number(0, 1), _put),
    "top_p": RequestField(Number(0, 1, above=True), _put),
    "top_k": RequestField(Whole(0, 2**31 - 1), _put),
    "stop_sequences": RequestField(Values(_STOPS, "a list of up to 16 strings, none empty"), _stop_sequences),
    "metadata": RequestField(
        ByHand({"type": "object", "properties": _USER, "additionalProperties": False}), _metadata
    ),
    "thinking": RequestField(ByHand(_object("type", type={"enum": ["adaptive", "disabled"]})), _thinking),
    "output_config": RequestField(OBJECT, _output_config),
    "tools": RequestField(Values(list[Any], "a list", schema={"type": "array", "items": _TOOL}), _tools),
    "tool_choice": RequestField(ByHand(_CHOICE), _tool_choice),
    "cache_control": RequestField(ByHand(_object("type", type={"const": "ephemeral"})), _cache_control),
    "thread": RequestField(ByHand({"enum": [None]}), _thread),
    "chat_template_kwargs": RequestField(OBJECT, _template_arguments),
    # The rest is checked as the chat completion's field of the name.
    **{
        name: RequestField(ByHand(one.values.schema), _put)
        for name, one in PARAMETERS.items()
        if "messages" in one.routes
    },
    "ignore_eos": RequestField(ByHand(FLAG.schema), _put),
    "include_stop_str_in_output": RequestField(ByHand(FLAG.schema), _put),
}
_IDLE = {**OTHER_FIELDS, "speed": _IdleHere("", "standard"), "mcp_servers": _IdleHere("", [])}
MESSAGES = RequestSchema(
    _FIELDS_OF_BODIES, required=("model", "max_tokens", "messages"), idle=_IDLE, quoted=0
)
COUNT_TOKENS = RequestSchema(_FIELDS_OF_BODIES, required=("model", "messages"), idle=_IDLE, quoted=0)

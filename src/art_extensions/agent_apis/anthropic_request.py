"""An Anthropic request (`/v1/messages`) is read into the body of a chat completion.

Content blocks become chat messages: text, calls and their results, thinking; blocks of other types are
refused. A field acts, is refused by its name where leaving it out would change the reply, or is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import orjson
from pydantic import Field

from art.server.chat.chat_request import CHAT, EFFORT
from art.server.chat.messages import MOST_MESSAGES
from art.server.chat.request_fields import (
    OTHER_FIELDS,
    LeftOutParts,
    RequestField,
    RequestSchema,
    check_object,
)
from art.wire.quoting import quote_value
from art.wire.request_values import (
    AT_LEAST_ONE,
    FLAG,
    NAME,
    OBJECT,
    TEXT,
    UNSUPPORTED,
    ByHand,
    Idle,
    Number,
    Schema,
    Values,
    Whole,
    refuse,
)
from art.wire.sampling import PARAMETERS
from art_extensions.agent_apis.anthropic_tools import (
    CHOICE,
    TOOL,
    chat_tool_choice,
    chat_tools,
    check_cache_control,
)

_FIELDS = {
    "text": {"type", "text", "cache_control", "citations"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "tool_reference": {"type", "tool_name", "cache_control"},
}
_OF_ROLE = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
}
_IN_RESULT = ("text", "tool_reference")
ROUTE = "/v1/messages"
_NOT_SHOWN = "the model is not shown it"
_ERROR = "Error: "
_BETWEEN = "\n"
"""The separator of one message's text blocks, which are paragraphs of their own."""


def read_conversation(value: Any, left_out: LeftOutParts) -> list[dict[str, Any]]:
    """Chat messages of `messages`. Raises: RequestError naming the block."""
    if not isinstance(value, list) or not value:
        refuse("messages must be a list of at least one message", "messages")
    if len(value) > MOST_MESSAGES:
        refuse(f"{len(value)} messages are more than {MOST_MESSAGES}", "messages", "context_length_exceeded")
    read: list[dict[str, Any]] = []
    for index, message in enumerate(value):
        read += _message(message, f"messages[{index}]", left_out)
    if read and read[-1]["role"] == "assistant":
        refuse(
            "the last message is the assistant's: continuing it (prefill) is not supported; end with the "
            "user's message",
            f"messages[{len(value) - 1}]",
            "unsupported_parameter",
        )
    return read


def read_text(value: Any, at: str, left_out: LeftOutParts) -> str:
    """The text of a string or of text blocks. Raises: RequestError naming the block."""
    if isinstance(value, str):
        return value
    return _BETWEEN.join(_text(block, where) for block, where in _blocks(value, _IN_RESULT, at, left_out))


def _message(message: Any, at: str, left_out: LeftOutParts) -> list[dict[str, Any]]:
    if not isinstance(message, dict):
        refuse(f"{at} must be an object with role and content", at)
    for name in message.keys() - {"role", "content"}:
        left_out.skip(f"messages.{name}", f"{at}.{name[:100]}", _NOT_SHOWN)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _OF_ROLE:
        refuse(f"{at}.role must be one of {', '.join(_OF_ROLE)}", f"{at}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = _blocks(content, _OF_ROLE[role], f"{at}.content", left_out)
    if role == "assistant":
        return [_reply(blocks)]
    return _messages_of(role, blocks, left_out)


def _blocks(
    content: Any, kinds: Sequence[str], at: str, left_out: LeftOutParts
) -> list[tuple[dict[str, Any], str]]:
    """The checked blocks, each with its place in the request."""
    if not isinstance(content, list):
        refuse(f"{at} must be a string or a list of content blocks", at)
    checked = ((_checked(block, kinds, f"{at}[{n}]", left_out), n) for n, block in enumerate(content))
    return [(block, f"{at}[{n}]") for block, n in checked if block is not None]


def _checked(block: Any, kinds: Sequence[str], at: str, left_out: LeftOutParts) -> dict[str, Any] | None:
    """The block; None: nobody here can read it."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        refuse(f"{at} must be an object with a type", at)
    kind = block["type"]
    if kind not in kinds:
        refuse(
            f"{at} is a block of type {kind[:100]!r}; blocks supported here: {', '.join(kinds)}",
            at,
            "unsupported_parameter",
        )
    if kind == "redacted_thinking":
        left_out.skip(kind, at, "only Anthropic can read it, and this model never said it")
        return None
    left_out.skip_others(block, _FIELDS[kind], kind, at, _NOT_SHOWN)
    check_cache_control(block.get("cache_control"), f"{at}.cache_control")
    return block


def _text(block: Mapping[str, Any], at: str) -> str:
    if block["type"] == "tool_reference":  # a tool that was found: the model has been shown it from the start
        return _string(block, "tool_name", at)
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
    # A small model may write a call without a name: it is shown what it wrote.
    name = "" if block.get("name") is None else _string(block, "name", at)
    function = {"name": name, "arguments": arguments}
    return {"id": _string(block, "id", at), "type": "function", "function": function}


def _messages_of(
    role: str, blocks: list[tuple[dict[str, Any], str]], left_out: LeftOutParts
) -> list[dict[str, Any]]:
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
        messages.append(_result(block, at, left_out))
    if texts or not messages:
        messages.append({"role": role, "content": _BETWEEN.join(texts)})
    return messages


def _result(block: Mapping[str, Any], at: str, left_out: LeftOutParts) -> dict[str, Any]:
    content = block.get("content")
    text = "" if content is None else read_text(content, f"{at}.content", left_out)
    failed = block.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        refuse(f"{at}.is_error must be true or false", f"{at}.is_error")
    if failed and not text.lower().startswith("error"):
        # Chat formats have no word for a failed call but its text.
        text = _ERROR + text
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", at), "content": text}


class Chat(dict[str, Any]):
    """The body of a chat completion while it is made, and what of the request it leaves out."""

    def __init__(self, left_out: LeftOutParts) -> None:
        super().__init__()
        self.left_out = left_out


def chat_body(body: Any, left_out: LeftOutParts | None = None, *, counting: bool = False) -> Chat:
    """The chat body that asks for the same. `counting`: of `/v1/messages/count_tokens`.

    Raises: RequestError naming the field of the request.
    """
    check_object(body)
    left_out = left_out or LeftOutParts(ROUTE)
    schema = COUNT_TOKENS if counting else MESSAGES
    for name in schema.required:
        if body.get(name) is None:
            refuse(f"{name!r} is missing", name, "missing_parameter")
    chat = Chat(left_out)
    chat["messages"] = read_conversation(body["messages"], left_out)
    schema.read(chat, body, left_out)
    return chat


def _put(chat: Chat, name: str, value: Any) -> None:
    chat[name] = value


def _nothing(chat: Chat, name: str, value: Any) -> None:
    """Ignores a field that was read before, or has no effect."""


def _system(chat: Chat, name: str, value: Any) -> None:
    text = read_text(value, name, chat.left_out)
    if text:
        chat["messages"] = [{"role": "system", "content": text}, *chat["messages"]]


def _stop_sequences(chat: Chat, name: str, value: list[str]) -> None:
    chat["stop"] = value


def _metadata(chat: Chat, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        refuse("metadata must be an object", name)
    for other in value.keys() - {"user_id"}:
        at = f"metadata.{other[:100]}"
        chat.left_out.skip("metadata", at, "user_id alone is kept with the sample")
    user = value.get("user_id")
    if user is not None:
        if not isinstance(user, str):
            refuse("metadata.user_id must be a string", "metadata.user_id")
        chat["metadata"] = {"user_id": user}


def _thinking(chat: Chat, name: str, value: Any) -> None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "disabled":
        chat["chat_template_kwargs"] = {**chat.get("chat_template_kwargs", {}), "enable_thinking": False}
        return
    if kind not in ("adaptive", "enabled"):
        refuse("thinking.type must be one of adaptive, enabled, disabled", name)
    # The model thinks as it was taught to: that is what every format does without being told.
    budget = value.get("budget_tokens")
    if budget is not None:
        at = f"{name}.budget_tokens"
        AT_LEAST_ONE.read(at, budget)
        chat.left_out.skip(
            at, at, "the model thinks as long as it wants to; max_tokens limits the whole reply"
        )
    if value.get("display") not in (None, "summarized"):
        at = f"{name}.display"
        chat.left_out.skip(at, at, "thinking is always shown, so that it can be sent back")


def _context_management(chat: Chat, name: str, value: Any) -> None:
    edits = value.get("edits") if isinstance(value, dict) else None
    for n, edit in enumerate(edits if isinstance(edits, list) else () if edits is None else [edits]):
        at = f"{name}.edits[{n}]"
        kind = edit.get("type") if isinstance(edit, dict) else None
        thinking = isinstance(kind, str) and kind.startswith("clear_thinking_")
        if not thinking or edit.get("keep") != "all":
            refuse(
                f"{at} = {quote_value(edit)} would take parts of the conversation out of the prompt, and is "
                "not supported; supported: edits of thinking with keep = 'all'. Send a shorter conversation",
                at,
                UNSUPPORTED,
            )


def _output_config(chat: Chat, name: str, value: dict[str, Any]) -> None:
    chat.left_out.skip_others(
        value, ("format", "effort"), "output_config", "output_config", "it is not part of the prompt"
    )
    effort = value.get("effort")
    if effort is not None:
        chat["reasoning_effort"] = EFFORT.read("output_config.effort", effort, quoted=0)
    if value.get("format") is not None:
        _output_format(chat, "output_config.format", value["format"])


def _output_format(chat: Chat, name: str, wanted: Any) -> None:
    schema = wanted.get("schema") if isinstance(wanted, dict) else None
    if not isinstance(schema, dict) or wanted.get("type") != "json_schema":
        refuse(f"{name} must be {{'type': 'json_schema', 'schema': {{...}}}}", name)
    named = {"name": "output", "schema": schema, "strict": True}
    chat["response_format"] = {"type": "json_schema", "json_schema": named}


def _tools(chat: Chat, name: str, value: list[Any]) -> None:
    chat["tools"] = chat_tools(value, chat.left_out)


def _tool_choice(chat: Chat, name: str, value: Any) -> None:
    chat["tool_choice"], several = chat_tool_choice(value)
    if not several:
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


def _object(required: str, **fields: Schema) -> Schema:
    """An object of these fields and others. `required`: their names, with blanks between."""
    return {"type": "object", "properties": fields, "required": required.split()}


_BLOCKS: Schema = {"anyOf": [TEXT.schema, {"type": "array", "items": _object("type", type=TEXT.schema)}]}
_TURN = _object("role content", role={"enum": list(_OF_ROLE)}, content=_BLOCKS)
_TURNS = {"type": "array", "items": _TURN, "minItems": 1, "maxItems": MOST_MESSAGES}
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
    "metadata": RequestField(ByHand({"type": "object", "properties": _USER}), _metadata),
    "thinking": RequestField(
        ByHand(_object("type", type={"enum": ["adaptive", "enabled", "disabled"]})), _thinking
    ),
    "output_config": RequestField(OBJECT, _output_config),
    "output_format": RequestField(OBJECT, _output_format),
    "context_management": RequestField(OBJECT, _context_management),
    "tools": RequestField(Values(list[Any], "a list", schema={"type": "array", "items": TOOL}), _tools),
    "tool_choice": RequestField(ByHand(CHOICE), _tool_choice),
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
_WHERE = Idle("it says where and how fast Anthropic computes, which changes no reply", anything=True)
_IDLE = {**OTHER_FIELDS, **dict.fromkeys(("speed", "inference_geo", "betas"), _WHERE)}
MESSAGES, COUNT_TOKENS = (
    RequestSchema(_FIELDS_OF_BODIES, required=required, idle=_IDLE, quoted=0, elsewhere=CHAT.fields)
    for required in (("model", "max_tokens", "messages"), ("model", "messages"))
)

"""Messages and tools of chat requests: how they are read, and their JSON schemas.

Messages are read into content as text, null fields gone, the rest refused. Only a message with images has
parts: texts, and images as `{"type": "image", "file": ...}` until `name_images` has given each its name.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import orjson

from art.rendering.images import IMAGE
from art.wire.quoting import quote_value
from art.wire.request_values import TEXT, Schema, refuse

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_CALL_ID = re.compile(r"call_([0-9a-f]{24})_\d+")

SAMPLE_PREFIX = "smp_"
MOST_MESSAGES = 100_000
MOST_TOOLS = 4096
_LEAST = 100
"""Characters that take as long as a message or a call without any."""

_NO_TEXT: Schema = {"anyOf": [TEXT.schema, {"type": "null"}]}
_PART: Schema = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": TEXT.schema},
    "required": ["type", "text"],
}
_IMAGE: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "image_url"},
        "image_url": {"type": "object", "properties": {"url": TEXT.schema}, "required": ["url"]},
    },
    "required": ["type", "image_url"],
}
_CONTENT: Schema = {"anyOf": [TEXT.schema, {"type": "array", "items": {"anyOf": [_PART, _IMAGE]}}]}
_DATA_URL = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,")
_SEEN_IN = ("user", "tool")
FILE = "file"
"""The bytes of an image that has no name yet, in its part."""
MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"enum": list(_ROLES)},
        "content": {"anyOf": [_CONTENT, {"type": "null"}]},
        "name": _NO_TEXT,
        "tool_calls": {"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}]},
        "tool_call_id": _NO_TEXT,
        "reasoning_content": _NO_TEXT,
    },
    "required": ["role"],
}
TOOL: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"},
                "description": TEXT.schema,
                "parameters": {"type": "object"},
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}


def read_messages(value: Any) -> list[dict[str, Any]]:
    """The messages as renderers want them. Raises: RequestError naming the message."""
    if not isinstance(value, list) or not value:
        refuse("messages must be a list of at least one message", "messages")
    if len(value) > MOST_MESSAGES:
        refuse(f"{len(value)} messages are more than {MOST_MESSAGES}", "messages", "context_length_exceeded")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """The tools as they were sent, checked. Raises: RequestError naming the tool."""
    if not isinstance(value, list):
        refuse(f"tools must be a list, not {quote_value(value)}", "tools")
    if len(value) > MOST_TOOLS:
        refuse(f"{len(value)} tools are more than {MOST_TOOLS}", "tools", "context_length_exceeded")
    for index, tool in enumerate(value):
        at = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            refuse(f"{at} must be an object with type 'function'", at)
        function = tool.get("function")
        if not isinstance(function, dict) or not _is_name(function.get("name")):
            refuse(f"{at}.function needs a name of letters, digits, '_', '-' and '.'", at)
        if not isinstance(function.get("parameters") or {}, dict):
            refuse(f"{at}.function.parameters must be a JSON schema object", at)
    return value or None


def sample_hint(messages: list[Any]) -> str | None:
    """The sample that the newest assistant message says it is: by `sample_id`, or by the ids of its calls."""
    for message in reversed(messages):
        if message.get("role") != "assistant":
            continue
        named = message.get("sample_id")
        if isinstance(named, str):
            return named
        calls = message.get("tool_calls")
        match = _CALL_ID.fullmatch(_text_of(calls[0].get("id"))) if calls else None
        return SAMPLE_PREFIX + match[1] if match else None
    return None


def message_size(message: dict[str, Any]) -> int:
    """Characters of one that was read; also an empty one takes its time."""
    size = _LEAST + sum(map(len, message_texts(message))) + len(message.get("reasoning_content", ""))
    return size + sum(_LEAST + len(call["function"]["arguments"]) for call in message.get("tool_calls", ()))


def message_texts(message: dict[str, Any]) -> Iterator[str]:
    """The texts of the content of one that was read."""
    content = message["content"]
    if isinstance(content, str):
        yield content
    else:
        yield from (part["text"] for part in content if part["type"] == "text")


def call_id(sample_id: str, index: int) -> str:
    """The id of a call: unique, and a way back to its sample."""
    return f"call_{sample_id.removeprefix(SAMPLE_PREFIX)}_{index}"


def _text_of(value: Any) -> str:
    """A short text as it is; of anything else, which may be large, its beginning."""
    return value if isinstance(value, str) else quote_value(value)


def _message(message: Any, at: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        refuse(f"{at} must be an object, not {quote_value(message)}", at)
    role = _ROLES.get(_text_of(message.get("role")))
    if role is None and "finish_reason" in message and "message" in message:
        refuse(
            f"{at} is a Choice (a reply and its details), not a message: send `trajectory.messages()` "
            "instead of `trajectory.messages_and_choices`, or `choice.message`",
            at,
        )
    if role is None:
        refuse(f"{at}.role is {quote_value(message.get('role'))}; known: {', '.join(_ROLES)}", f"{at}.role")
    read: dict[str, Any] = {"role": role, "content": _content(message.get("content"), role, at)}
    if role == "assistant":
        _assistant(message, read, at)
    elif role == "tool":
        if not isinstance(message.get("tool_call_id"), str):
            refuse(
                f"{at}.tool_call_id is missing: which call does the result belong to?", f"{at}.tool_call_id"
            )
        read["tool_call_id"] = message["tool_call_id"]
    name = message.get("name")
    if name is not None:
        if not isinstance(name, str):
            refuse(f"{at}.name must be a string, not {quote_value(name)}", f"{at}.name")
        read["name"] = name
    return read


def _assistant(message: dict[str, Any], read: dict[str, Any], at: str) -> None:
    for gone in ("function_call", "audio"):
        if message.get(gone) is not None:
            refuse(f"{at}.{gone} is not supported", f"{at}.{gone}", "unsupported_parameter")
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning:
        read["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if not calls:
        return
    if not isinstance(calls, list):
        refuse(f"{at}.tool_calls must be a list, not {quote_value(calls)}", f"{at}.tool_calls")
    read["tool_calls"] = [_call(call, f"{at}.tool_calls[{n}]") for n, call in enumerate(calls)]


def _call(call: Any, at: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    # A small model may write a call without a name: it is shown what it wrote.
    name = function.get("name") if isinstance(function, dict) else 0
    if not isinstance(function, dict) or not isinstance(name, str | None):
        refuse(f"{at} must be an object with a function, whose name is a text", at)
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        # Some frameworks keep arguments parsed.
        try:
            arguments = orjson.dumps(arguments).decode()
        except orjson.JSONEncodeError as error:
            refuse(f"{at}.function.arguments cannot be written as JSON: {error}", at)
    return {
        "id": _text_of(call.get("id") or ""),
        "type": "function",
        "function": {"name": name or "", "arguments": arguments},
    }


def _content(content: Any, role: str, at: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if content is None:
        if role in ("assistant", "tool"):  # a tool may have nothing to say
            return ""
        refuse(f"{at}.content is missing", f"{at}.content")
    if not isinstance(content, list):
        refuse(
            f"{at}.content must be a string or a list of parts, not {quote_value(content)}", f"{at}.content"
        )
    parts = [_part(part, role, at) for part in content]
    if any(part["type"] == IMAGE for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _part(part: Any, role: str, at: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else part
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url" and role in _SEEN_IN:
        return {"type": IMAGE, FILE: _file(part.get("image_url"), f"{at}.content")}
    refuse(
        f"{at}.content has a part of type {quote_value(kind)}; a {role} message takes text"
        + (" and image_url" if role in _SEEN_IN else " only"),
        f"{at}.content",
        "unsupported_content",
    )


def _file(image: Any, at: str) -> bytes:
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or (found := _DATA_URL.match(url)) is None:
        shown = url[:60] if isinstance(url, str) else url
        refuse(
            f"{at}: image_url.url {shown!r} is no data URL of a PNG, JPEG, WebP or GIF. The server fetches "
            "nothing: send 'data:image/png;base64,...'",
            at,
            "unsupported_content",
        )
    try:
        return b64decode(url[found.end() :], validate=True)
    except ValueError as error:
        refuse(f"{at}: the data URL of an image is no base64: {error}", at, "invalid_image")


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None

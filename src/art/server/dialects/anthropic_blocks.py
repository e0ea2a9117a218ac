"""Anthropic's content blocks as chat messages: text, calls and their results, thinking; the rest refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from art.server.dialects.chat_messages import MOST_MESSAGES
from art.server.dialects.refusal import refuse

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
    return _told(role, blocks)


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


def _told(role: str, blocks: list[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
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

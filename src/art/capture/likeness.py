"""Messages and tools as clients spell them, by what makes them the same (`art.wire.message_identity`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from art.wire.message_identity import message_identity

MessageKey = bytes


def as_dict(message: Any) -> Any:
    """A message as a dict. Replies that are sent back as they came are pydantic objects."""
    return message.model_dump(mode="json", exclude_unset=True) if isinstance(message, BaseModel) else message


def message_key(message: Mapping[str, Any]) -> MessageKey:
    """Equal for two spellings of one message: its role, text and calls."""
    functions = [as_dict(call).get("function") or as_dict(call) for call in message.get("tool_calls") or ()]
    if message.get("function_call"):
        functions.append(message["function_call"])
    calls = ((str(call.get("name")), call.get("arguments")) for call in map(as_dict, functions))
    return message_identity(str(message.get("role")), _text(message.get("content")), calls)


def tools_key(tools: Any) -> str:
    """Equal for two spellings of one list of tools; empty without tools."""
    return _sorted([as_dict(tool) for tool in tools]) if tools else ""


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [as_dict(part) for part in content]
    if all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        return "".join(str(part.get("text") or "") for part in parts)
    return _sorted(parts)


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)

"""When two messages are the same turn: one answer for the client that captures and the server that stitches.

Clients drop nulls and reasoning, strip replies, parse arguments and write them again with other spaces,
another order of keys or another spelling of a number. None of that makes it another conversation. Other text
does.

    {"role": "assistant", "content": "hi ", "tool_calls": [... '{"n": 1000.0, "a": 1}' ...]}
    {"role": "assistant", "content": "hi", "tool_calls": [... '{"a":1,"n":1000}' ...]}         the same
    {"role": "assistant", "content": "hi!", ...}                                                another
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json

_EXACT = 2**53
"""The bound below which a whole float and an int are one number in any JSON library."""


def prefix_keys(messages: Iterable[Mapping[str, Any]], start: bytes = b"") -> list[bytes]:
    """Returns a key for each beginning of a conversation, from the empty one, `start`, to the whole.

    A conversation continues another one where the whole key of that is among its own.
    """
    keys = [start]
    for message in messages:
        keys.append(hashlib.blake2b(keys[-1] + message_key(message), digest_size=16).digest())
    return keys


def message_key(message: Mapping[str, Any]) -> bytes:
    """Returns the identity of a message as clients have it: a dict, whose calls may be objects."""
    functions = [as_dict(call).get("function") or as_dict(call) for call in message.get("tool_calls") or ()]
    if message.get("function_call"):
        functions.append(message["function_call"])
    made = (one for one in map(as_dict, functions) if isinstance(one, Mapping))
    calls = ((str(call.get("name")), call.get("arguments")) for call in made)
    return message_identity(str(message.get("role")), _text(message.get("content")), calls)


def as_dict(message: Any) -> Any:
    """A message as a dict. Replies that are sent back as they came are pydantic objects, of odd types too."""
    if isinstance(message, BaseModel):
        return message.model_dump(mode="json", exclude_unset=True, warnings=False)
    return message


def sorted_json(value: Any) -> str:
    """Returns one spelling of a value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, default=str)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [as_dict(part) for part in content]
    if all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        return "".join(str(part.get("text") or "") for part in parts)
    return sorted_json(parts)


def message_identity(role: str, content: str, calls: Iterable[tuple[str, Any]] = ()) -> bytes:
    """Equal for two spellings of one message.

    content: its text; of an assistant, white space around it does not count. calls: name and arguments (JSON
    text, or what it spells) of each call. Each part is preceded by its length, so that no text can pretend to
    be the end of a field.
    """
    text = (content.strip() if role == "assistant" else content).encode("utf-8", "surrogatepass")
    parts = [b"%s %d:" % (role.encode(), len(text)), text]
    for name, arguments in calls:
        spelled = f"{name} ".encode("utf-8", "surrogatepass") + _arguments(arguments)
        parts += (b"call %d:" % len(spelled), spelled)
    return b"".join(parts)


def _arguments(arguments: Any) -> bytes:
    try:
        return to_json(_plain(from_json(arguments) if isinstance(arguments, str) else arguments))
    except (ValueError, RecursionError, PydanticSerializationError):
        return str(arguments).encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    """Keys in order, whole floats as ints: 1e3, 1000 and 1000.0 are one number."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value)}
    return value

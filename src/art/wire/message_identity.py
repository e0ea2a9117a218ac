"""When two messages are the same turn: one answer for the client that captures and the server that stitches.

Clients drop nulls and reasoning, strip replies, parse arguments and write them again with other spaces,
another order of keys or another spelling of a number. None of that makes it another conversation. Other text
does.

    {"role": "assistant", "content": "hi ", "tool_calls": [... '{"n": 1000.0, "a": 1}' ...]}
    {"role": "assistant", "content": "hi", "tool_calls": [... '{"a":1,"n":1000}' ...]}         the same
    {"role": "assistant", "content": "hi!", ...}                                                another
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

_EXACT = 2**53
"""Up to here a float that is whole and an int are one number in any JSON library."""


def message_identity(role: str, content: str, calls: Iterable[tuple[str, Any]] = ()) -> bytes:
    """Equal for two spellings of one message.

    content: its text; of an assistant, white space around it does not count. calls: name and arguments (JSON
    text, or what it spells) of each call. Each part is preceded by its length, so that no text can pretend to
    be the end of a field.
    """
    if role == "assistant":
        content = content.strip()
    text = content.encode("utf-8", "surrogatepass")
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

"""The text of one member of a JSON object, exactly as it was written."""

from __future__ import annotations

import json
from json.decoder import JSONDecoder

_DECODER = JSONDecoder()
_SPACE = " \t\n\r"


def raw_member(text: str, key: str) -> str | None:
    """The text of `key`'s value in the object `text`; None when it is no object, or has no such key.

    Parsing and writing again would turn `1e3` into `1000.0`: programs should see what the model wrote.

    >>> raw_member('{"name": "f", "arguments": {"x": 1e3, "ok": false}}', "arguments")
    '{"x": 1e3, "ok": false}'
    """
    position = _skip(text, 0)
    if text[position : position + 1] != "{":
        return None
    found: str | None = None
    position = _skip(text, position + 1)
    try:
        while text[position : position + 1] == '"':
            name, position = _DECODER.raw_decode(text, position)
            position = _skip(text, position)
            if text[position : position + 1] != ":":
                return None
            start = _skip(text, position + 1)
            _, position = _DECODER.raw_decode(text, start)
            if name == key:
                found = text[start:position]
            position = _skip(text, position)
            if text[position : position + 1] == ",":
                position = _skip(text, position + 1)
    except json.JSONDecodeError:
        return None
    return found if text[position : position + 1] == "}" else None


def is_object(text: str) -> bool:
    """Whether the text is one valid JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position

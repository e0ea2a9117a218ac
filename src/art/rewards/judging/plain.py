"""Anything as plain JSON values: what a judge reads has no objects, no binary data and no broken text."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

DEPTH = 40
"""Deeper nesting is cut: data of a tool may refer to itself."""


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as dicts, lists, texts and numbers; what is none of these is named in brackets.

    Examples: b"ab" -> "[2 bytes, sha256 fb8e20fc]"; nan -> "nan"; an object -> "[SomeClass]".
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        # Half a surrogate pair cannot be sent as UTF-8.
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(bytes(value))} bytes, sha256 {fingerprint(bytes(value))}]"
    if depth >= DEPTH:
        return "[...]"
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_none=True), depth + 1)
    if isinstance(value, Mapping):
        return {plain_key(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    return f"[{type(value).__name__}]"


def plain_key(key: Any) -> str:
    """A key of a JSON object."""
    return str(plain(key))


def fingerprint(data: bytes | str) -> str:
    """The first 8 hexadecimal digits of the SHA-256: enough to see that two are the same."""
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    return hashlib.sha256(raw).hexdigest()[:8]

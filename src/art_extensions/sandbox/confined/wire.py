"""Plain values of Python as JSON, and lines between processes.

JSON has no tuple, set, bytes or complex number, and only text as keys: these travel as {"": kind, "v": ...}.
Nothing but plain values comes out, whoever wrote the line: no object of the other side, no method of its own.
"""

from __future__ import annotations

import math
import os
from typing import Any, Final

LINE_BYTES: Final = 4 << 20
"""The longest line."""
DEPTH: Final = 64
"""How deep a result may be nested."""
DEPTH_OF_ARGUMENTS: Final = 2 * DEPTH
"""More: a test may pass on, in lists of its own, what it was given."""
NONFINITE: Final = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class NotPlainError(TypeError):
    """A value that is no plain data, or a line that is none of ours."""


def to_json(value: Any, depth: int = DEPTH) -> Any:
    """The value as what `json` can write. Raises NotPlainError for anything but plain values."""
    if depth == 0:
        raise NotPlainError(f"nested deeper than {DEPTH}")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"": "float", "v": repr(value)}
    if kind is list:
        return [to_json(item, depth - 1) for item in value]
    if kind in (tuple, set, frozenset):
        return {"": kind.__name__, "v": [to_json(item, depth - 1) for item in value]}
    if kind is dict:
        pairs = [[to_json(key, depth - 1), to_json(item, depth - 1)] for key, item in value.items()]
        return {"": "dict", "v": pairs}
    if kind in (bytes, bytearray):
        return {"": kind.__name__, "v": value.hex()}
    if kind is complex:
        return {"": "complex", "v": [value.real, value.imag]}
    raise NotPlainError(f"{kind.__module__}.{kind.__qualname__} is no plain value")


def from_json(value: Any, depth: int = DEPTH) -> Any:
    """The value again. Raises NotPlainError for what `to_json` did not write."""
    if depth == 0:
        raise NotPlainError(f"nested deeper than {DEPTH}")
    if isinstance(value, list):
        return [from_json(item, depth - 1) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        return _special(value[""], value["v"], depth)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NotPlainError(f"a line that is no plain value: {error!r}") from error


def _special(kind: str, content: Any, depth: int) -> Any:
    if kind == "dict":
        return {from_json(key, depth - 1): from_json(item, depth - 1) for key, item in content}
    if kind in ("tuple", "set", "frozenset"):
        items = [from_json(item, depth - 1) for item in content]
        return tuple(items) if kind == "tuple" else set(items) if kind == "set" else frozenset(items)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "bytearray":
        return bytearray.fromhex(content)
    if kind == "float":
        return NONFINITE[content]
    if kind == "complex":
        return complex(*(float(part) for part in content))
    raise KeyError(kind)


class Lines:
    """Lines to and from another process, over two descriptors."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink, self._rest = source, sink, b""

    @classmethod
    def of_standard_streams(cls) -> Lines:
        """Take over stdin and stdout: what is printed goes to stderr from now on, and nothing can be read."""
        source, sink = os.dup(0), os.dup(1)
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return cls(source, sink)

    def read(self) -> bytes | None:
        """The next line; None at the end."""
        while b"\n" not in self._rest:
            part = os.read(self._source, 1 << 16)
            if not part:
                return None
            self._rest += part
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def write(self, line: bytes) -> None:
        left = memoryview(line + b"\n")
        while left:
            left = left[os.write(self._sink, left) :]

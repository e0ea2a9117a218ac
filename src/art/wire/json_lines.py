"""JSON that stands on one line, whoever cuts the stream into lines.

`str.splitlines`, and with it `httpx.Response.iter_lines`, also cuts at U+0085, U+2028 and U+2029, which JSON
may hold as they are.
"""

from __future__ import annotations

_BREAKS = tuple((mark.encode(), b"\\u%04x" % ord(mark)) for mark in ("\x85", "\u2028", "\u2029"))


def one_line(json: bytes | str) -> bytes:
    """Returns the same JSON without a character that ends a line; `json` is written without indentation."""
    line = json.encode() if isinstance(json, str) else json
    for mark, escaped in _BREAKS:
        line = line.replace(mark, escaped)
    return line

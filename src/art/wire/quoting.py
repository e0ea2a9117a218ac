"""Values that somebody sent, of any size: what a refusal repeats of them, and whether they are too long.

`f"{value!r:.200}"` writes the whole value first, and cuts it then: five seconds for a list of 30 MB, in which
nobody else has a turn.

    >>> quote_value([1, {"a": None}])
    "[1, {'a': None}]"
    >>> quote_value(list(range(1000)), 10)
    '[0, 1, 2, '
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def writable(text: str) -> str:
    """Returns the text with "?" for what UTF-8 cannot hold (unpaired surrogates)."""
    return text.encode("utf-8", "replace").decode("utf-8")


def quote_value(value: Any, most: int = 200) -> str:
    """Returns the first `most` characters of the `repr` of a value of JSON."""
    pieces: list[str] = []
    left = most
    for piece in _pieces(value, most):
        pieces.append(piece)
        left -= len(piece)
        if left <= 0:
            break
    return "".join(pieces)[:most]


def is_longer_than(value: Any, characters: int) -> bool:
    """Returns whether a value of JSON, as text, has more than so many characters; to count on costs nothing.

    It may have some more where this says no.
    """
    rest = [value]
    while rest and characters >= 0:
        one = rest.pop()
        if isinstance(one, str):
            characters -= len(one) + 2
        elif isinstance(one, list | dict):
            # A comma and a character for each.
            characters -= 2 * len(one)
            if characters < 0:
                break
            if isinstance(one, dict):
                characters -= sum(map(len, one))
            rest.extend(one.values() if isinstance(one, dict) else one)
        else:
            characters -= 1
    return characters < 0


def _pieces(value: Any, most: int) -> Iterator[str]:
    if isinstance(value, str | bytes):
        yield repr(value[:most])
    elif isinstance(value, dict):
        yield from _listed(value.items(), "{}", most)
    elif isinstance(value, list):
        yield from _listed(value, "[]", most)
    else:
        yield repr(value)


def _listed(items: Iterable[Any], brackets: str, most: int) -> Iterator[str]:
    yield brackets[0]
    for number, item in enumerate(items):
        if number:
            yield ", "
        if brackets == "{}":
            yield from _pieces(item[0], most)
            yield ": "
            yield from _pieces(item[1], most)
        else:
            yield from _pieces(item, most)
    yield brackets[1]

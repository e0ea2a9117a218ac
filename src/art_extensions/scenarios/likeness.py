"""How alike two generated texts are. Likeness goes by words; rules about near-duplicates are made of it."""

from __future__ import annotations

import re
from typing import Any

from art.errors import extra_needed

_WORD = re.compile(r"\w+(?:[.:-]\w+)*")


def words(text: str) -> list[str]:
    """Lower-case words and numbers, without the punctuation around them."""
    return _WORD.findall(text.casefold())


def likeness(one: str, two: str) -> float:
    """Returns the likeness of two texts' words in any order, 0 to 1: rapidfuzz's token_sort_ratio. Raises
    ConfigurationError.
    """
    fuzz = _rapidfuzz()
    return float(fuzz.token_sort_ratio(" ".join(words(one)), " ".join(words(two)))) / 100


def spelling_likeness(one: str, two: str) -> float:
    """Returns the likeness of two words' letters in order, 0 to 1: rapidfuzz's ratio. Raises
    ConfigurationError.
    """
    return float(_rapidfuzz().ratio(one, two)) / 100


def _rapidfuzz() -> Any:
    own = " (or [mcp]), or set similarity=1.0, by which only equal words are one text"
    with extra_needed("autorl", "comparing generated texts", remedy=own):
        from rapidfuzz import fuzz
    return fuzz

"""How alike two texts are, by their words: what rules about near-duplicates are made of."""

from __future__ import annotations

import re
from typing import Any

from art.errors import ConfigurationError

_WORD = re.compile(r"\w+(?:[.:-]\w+)*")


def words(text: str) -> list[str]:
    """Lower-case words and numbers, without the punctuation around them."""
    return _WORD.findall(text.casefold())


def likeness(one: str, two: str) -> float:
    """Of two texts' words in any order, 0 to 1: rapidfuzz's token_sort_ratio. Raises ConfigurationError."""
    fuzz = _rapidfuzz()
    return float(fuzz.token_sort_ratio(" ".join(words(one)), " ".join(words(two)))) / 100


def spelling_likeness(one: str, two: str) -> float:
    """Of two words' letters in their order, 0 to 1: rapidfuzz's ratio. Raises ConfigurationError."""
    return float(_rapidfuzz().ratio(one, two)) / 100


def _rapidfuzz() -> Any:
    try:
        from rapidfuzz import fuzz
    except ImportError as error:
        raise ConfigurationError(
            "rapidfuzz is needed to tell texts apart: pip install 'agent-reinforcement-trainer[autorl]' (or "
            "[mcp]), or take similarity=1.0, by which only equal words are one text"
        ) from error
    return fuzz

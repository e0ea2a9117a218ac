"""The model that writes what is trained on: the channel to it, and how alike two of its texts are.

Likeness goes by words; rules about near-duplicates are made of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

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


if TYPE_CHECKING:
    from art.model import Model
    from art.rewards.llm.budget import Budget
    from art.rewards.llm.cache import AnswerCache
    from art.rewards.llm.channel import Channel
    from art.rewards.llm.request import Llm

    Generator = str | Model | Llm | Channel | Callable[..., Any]
    """A name ("openai/gpt-4.1-mini"), a model, a function, or a channel of one's own."""

DEFAULT_GENERATOR = "openai/gpt-4.1-mini"


def generator_channel(
    generator: Generator,
    *,
    source: str,
    params: Mapping[str, Any] | None = None,
    cache: AnswerCache | None = None,
    budget: Budget | None = None,
) -> Channel:
    """A channel to the generator, whose costs are told under `source`; one that was given is used as it is.

    Raises ConfigurationError.
    """
    from art.rewards.llm.channel import Channel
    from art.rewards.llm.names import resolve_llm

    if isinstance(generator, Channel):
        return generator
    return Channel(resolve_llm(generator, params=params), cache=cache, budget=budget, source=source)

"""The way to the model that writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from art.llm.channel import Channel
from art.llm.names import resolve_llm

if TYPE_CHECKING:
    from art.llm.budget import Budget
    from art.llm.cache import AnswerCache
    from art.llm.request import Llm
    from art.prompted_model import Model

    Generator = str | Model | Llm | Channel | Callable[..., Any]
    """A name ("openai/gpt-4.1-mini"), a model, a function, or a channel of one's own."""

SOURCE = "generator/autorl"


def generator_channel(
    generator: Generator,
    *,
    params: Mapping[str, Any] | None = None,
    cache: AnswerCache | None = None,
    budget: Budget | None = None,
) -> Channel:
    """A channel to the generator; one that was given is used as it is. Raises ConfigurationError."""
    if isinstance(generator, Channel):
        return generator
    return Channel(resolve_llm(generator, params=params), cache=cache, budget=budget, source=SOURCE)

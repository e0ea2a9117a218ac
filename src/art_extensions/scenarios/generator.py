"""The model that writes what is trained on, and the channel to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

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

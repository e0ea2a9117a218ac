"""What an answer cost, and whether that can be known before it is asked for."""

from __future__ import annotations

from typing import Any

from art.tracking.builder import active_builder
from art.tracking.price_tables import TokenPricing
from art.tracking.pricing import PriceBook

FREE = TokenPricing(prompt_per_million=0.0, completion_per_million=0.0)
"""Of a model that runs on a machine of one's own."""


def _book() -> PriceBook:
    """What the program registered with the active builder wins over the published prices."""
    builder = active_builder()
    return PriceBook() if builder is None else builder.prices


def usd_of(response: Any, *, provider: str, model: str, given: TokenPricing | None) -> float | None:
    """US dollars of a response: as it tells itself, else its tokens times the price; None: unknown."""
    if given is not None:
        return _book().cost(response, provider=provider, model_name=model, given=given)
    if pricing_of(model, None) is None:
        return _book().stated(response, provider=provider)
    return _book().cost(response, provider=provider, model_name=model, given=None)


def pricing_of(model: str, given: TokenPricing | None) -> TokenPricing | None:
    """The price of a model's tokens; None where none is known."""
    known = given if given is not None else _book().pricing_of(model)
    whole = known is not None and None not in (known.prompt_per_million, known.completion_per_million)
    return known if whole else None

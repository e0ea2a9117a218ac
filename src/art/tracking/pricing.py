"""What a response cost: the price it tells, else what an extractor says, else its tokens times a price."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from art.errors import ConfigurationError
from art.tracking.price_tables import MILLION, MODEL_TOKEN_PRICING, TokenPricing
from art.tracking.training_costs import get_model_pricing
from art.tracking.usage import TokenUsage, stated_cost, token_usage

RESOLD = frozenset({"openai", "anthropic", "gemini", "deepseek", "xai", "mistral", "openrouter"})
"""Providers in front of a model's name whose prices are the published ones."""
_DATE = re.compile(r"-(\d{4}-\d\d-\d\d|20\d{6})$")


@dataclass
class PriceBook:
    """Prices and extractors that a program registered, in front of the published ones."""

    registered: dict[str, TokenPricing] = field(default_factory=dict)
    extractors: dict[str, Callable[[Any], float | None]] = field(default_factory=dict)

    def cost(
        self, response: Any, *, provider: str, model_name: str, given: TokenPricing | None
    ) -> float | None:
        """US dollars of a response; None when it tells neither price nor tokens.

        Raises ConfigurationError when it has tokens and no price is known.
        """
        if (told := self.stated(response, provider=provider)) is not None:
            return told
        usage = token_usage(response, provider)
        if usage is None:
            return None
        return _price(usage, self._pricing(provider, model_name, given))

    def stated(self, response: Any, *, provider: str) -> float | None:
        """What the response itself or the provider's extractor says; None when neither does."""
        if (told := stated_cost(response)) is not None:
            return told
        extractor = self.extractors.get(provider)
        extracted = None if extractor is None else extractor(response)
        return None if extracted is None else float(extracted)

    def pricing_of(self, model_name: str) -> TokenPricing | None:
        """A model's price: registered, else published; None where none is known.

        "openai/gpt-4.1" and "gpt-4.1-2025-04-14" have the price of "gpt-4.1" where they have none of their
        own. Nothing is loaded and nobody is asked: this is called between the requests of a step.
        """
        names = _names(model_name)
        return (
            self._registered(model_name)
            or next((MODEL_TOKEN_PRICING[name] for name in names if name in MODEL_TOKEN_PRICING), None)
            or next((found for name in names if (found := _litellm_pricing(name))), None)
            or _training_pricing(model_name)
        )

    def _registered(self, model_name: str) -> TokenPricing | None:
        """Under this name, else under the same with or without its provider."""
        if model_name in self.registered:
            return self.registered[model_name]
        bare = _names(model_name)[-1]
        return next((price for name, price in self.registered.items() if _names(name)[-1] == bare), None)

    def _pricing(self, provider: str, model_name: str, given: TokenPricing | None) -> TokenPricing:
        known = self.pricing_of(model_name) or TokenPricing()
        over = {name: value for name, value in vars(given or TokenPricing()).items() if value is not None}
        pricing = dataclasses.replace(known, **over)
        if pricing.prompt_per_million is None or pricing.completion_per_million is None:
            raise ConfigurationError(
                f"No pricing configured for model {model_name!r} of provider {provider!r}: call "
                "register_model_pricing(model, prompt_per_million=..., completion_per_million=...), "
                "give the prices with the call, or register_cost_extractor"
            )
        return pricing


def _price(usage: TokenUsage, pricing: TokenPricing) -> float:
    """US dollars. A cache without a price of its own is charged as prompt."""
    prompt, completion = pricing.prompt_per_million or 0.0, pricing.completion_per_million or 0.0

    def or_prompt(price: float | None) -> float:
        return prompt if price is None else price

    usd = usage.prompt * prompt + usage.completion * completion
    usd += usage.cached_prompt * or_prompt(pricing.cached_prompt_per_million)
    usd += usage.cache_creation * or_prompt(pricing.cache_creation_per_million)
    usd += usage.cache_read * or_prompt(pricing.cache_read_per_million)
    return usd / MILLION


def _training_pricing(model_name: str) -> TokenPricing | None:
    pricing = get_model_pricing(model_name)
    if pricing is None:
        return None
    return TokenPricing(prompt_per_million=pricing.prefill, completion_per_million=pricing.sample)


def _names(model_name: str) -> list[str]:
    """What a model may be called in a table: the name, without providers in front, without a date behind."""
    names = [model_name]
    while (parts := names[-1].partition("/"))[0] in RESOLD and parts[2]:
        names.append(parts[2])
    undated = _DATE.sub("", names[-1])
    return names if undated == names[-1] else [*names, undated]


def _litellm_pricing(model_name: str) -> TokenPricing | None:
    """litellm's table, where the program has loaded litellm. We never do: it takes seconds, and a network."""
    table = getattr(sys.modules.get("litellm"), "model_cost", None) or {}
    prices = table.get(model_name)
    if prices is None:
        return None

    def million(name: str) -> float | None:
        return None if prices.get(name) is None else float(prices[name]) * MILLION

    read = million("cache_read_input_token_cost")
    return TokenPricing(
        prompt_per_million=million("input_cost_per_token"),
        completion_per_million=million("output_cost_per_token"),
        cached_prompt_per_million=read,
        cache_creation_per_million=million("cache_creation_input_token_cost"),
        cache_read_per_million=read,
    )

"""What a response or a training step costs in US dollars.

The published prices are per million tokens. They change: what a program registers wins. A response costs
the price that it states, else what an extractor says, else its tokens times a price. A run on your own
machine is charged nothing by the token: nothing is reported unless a program asks.

Source: `genai_prices` for what APIs ask; extensions of the kind `prices` for models that it does not know.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.extensions import PRICES, load_extensions

if TYPE_CHECKING:
    from decimal import Decimal

    from genai_prices.types import ModelInfo, TieredPrices

MILLION = 1e6


@dataclass(frozen=True, kw_only=True)
class TokenPricing:
    """An API's prices of a model's tokens. None: a price that is not given; see `PriceBook`."""

    prompt_per_million: float | None = None
    completion_per_million: float | None = None
    cached_prompt_per_million: float | None = None
    cache_creation_per_million: float | None = None
    cache_read_per_million: float | None = None

    @classmethod
    def given_once(cls, **prices: tuple[float | None, float | None]) -> TokenPricing:
        """Returns the prices of a call, each by the name it has here and by that of older programs
        (`prompt_price_per_million` for `prompt_per_million`).

        Raises ConfigurationError for a price that is given by both names and not the same.
        """
        chosen: dict[str, float | None] = {}
        for name, (value, older) in prices.items():
            if value is not None and older is not None and value != older:
                earlier = name.replace("_per_", "_price_per_")
                raise ConfigurationError(f"{name}={value!r} and {earlier}={older!r}: give the price once")
            chosen[name] = older if value is None else value
        return cls(**chosen)


PUBLISHERS = frozenset({"anthropic", "deepseek", "google", "mistral", "openai", "x-ai"})
"""Who makes the models that have a published price here, as `genai_prices` calls them."""


class PublishedPricing(Mapping[str, TokenPricing]):
    """The published prices of today, by the maker's own name of a model: without `openai/` in front.

    They are the table that comes with `genai_prices`, which is loaded on first use; nobody is asked. Where a
    price depends on the length of the context it is that of a short one, where it depends on the time that
    of now.
    """

    def __getitem__(self, name: str) -> TokenPricing:
        model = _published_model(name)
        if model is None:
            raise KeyError(name)
        prices = model.get_prices(datetime.now(UTC))

        def of_short_context(price: Decimal | TieredPrices | None) -> float | None:
            base: Any = getattr(price, "base", price)
            return None if base is None else float(base)

        read = of_short_context(prices.cache_read_mtok)
        return TokenPricing(
            prompt_per_million=of_short_context(prices.input_mtok),
            completion_per_million=of_short_context(prices.output_mtok),
            cached_prompt_per_million=read,
            cache_creation_per_million=of_short_context(prices.cache_write_mtok),
            cache_read_per_million=read,
        )

    def __iter__(self) -> Iterator[str]:
        from genai_prices.data import providers

        makers = (provider for provider in providers if provider.id in PUBLISHERS)
        return (model.id for maker in makers for model in maker.models if _published_model(model.id))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@lru_cache(maxsize=4096)
def _published_model(name: str) -> ModelInfo | None:
    if "/" in name:
        return None  # it is served by somebody else, at a price of theirs
    from genai_prices import Usage, calc_price

    try:
        found = calc_price(Usage(), model_ref=name)
    except LookupError:
        return None
    return found.model if found.provider.id in PUBLISHERS else None


MODEL_TOKEN_PRICING = PublishedPricing()

CostCalculator = Callable[[int, int, str], dict[str, float]]
"""(prompt tokens, completion tokens, cost context) -> US dollars by metric, `{"costs/...": usd}`."""


def no_costs(prompt_tokens: int, completion_tokens: int, cost_context: str) -> dict[str, float]:
    """The calculator of a model that costs nothing by the token."""
    return {}


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """Tokens by what is asked for them; each token is in one of the five."""

    prompt: float = 0.0
    completion: float = 0.0
    cached_prompt: float = 0.0
    """Read from a cache that the provider keeps by itself (OpenAI)."""
    cache_creation: float = 0.0
    cache_read: float = 0.0
    """Written to and read from a cache that the caller asked for (Anthropic)."""


def value_at(value: Any, *path: str) -> Any:
    """The value at a path of attributes or keys, extra fields (`model_extra`) included.

    None if there is none.
    """
    for name in path:
        extra = getattr(value, "model_extra", None)
        found = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        value = extra.get(name) if found is None and isinstance(extra, Mapping) else found
    return value


def stated_cost(response: Any) -> float | None:
    """The price that the response itself tells, as OpenRouter's `usage.cost`."""
    for found in (value_at(response, "usage", "cost"), value_at(response, "cost")):
        if isinstance(found, int | float) and not isinstance(found, bool):
            return float(found)
    return None


def token_usage(response: Any, provider: str) -> TokenUsage | None:
    """The tokens of a response: OpenAI's chat and responses APIs, Anthropic's messages; None without usage.

    OpenAI counts cached tokens as part of the prompt, Anthropic beside it.
    """
    usage = value_at(response, "usage")
    if usage is None:
        return None
    if value_at(usage, "prompt_tokens") is not None:
        cached = _token_count(value_at(usage, "prompt_tokens_details", "cached_tokens"))
        return TokenUsage(
            prompt=_token_count(value_at(usage, "prompt_tokens")) - cached,
            cached_prompt=cached,
            completion=_token_count(value_at(usage, "completion_tokens")),
        )
    if value_at(usage, "input_tokens") is None:
        return None
    prompt, completion = (
        _token_count(value_at(usage, "input_tokens")),
        _token_count(value_at(usage, "output_tokens")),
    )
    if provider != "anthropic" and value_at(usage, "cache_read_input_tokens") is None:
        cached = _token_count(value_at(usage, "input_tokens_details", "cached_tokens"))
        return TokenUsage(prompt=prompt - cached, cached_prompt=cached, completion=completion)
    return TokenUsage(
        prompt=prompt,
        completion=completion,
        cache_creation=_token_count(value_at(usage, "cache_creation_input_tokens")),
        cache_read=_token_count(value_at(usage, "cache_read_input_tokens")),
    )


def _token_count(value: Any) -> float:
    return float(value or 0)


RESOLD = frozenset({"openai", "anthropic", "gemini", "deepseek", "xai", "mistral", "openrouter"})
"""Providers in front of a model's name whose prices are the published ones."""
_DATE = re.compile(r"-(\d{4}-\d\d-\d\d|20\d{6})$")


@dataclass
class PriceBook:
    """Prices and extractors that a program registered, in front of the published ones."""

    registered: dict[str, TokenPricing] = field(default_factory=dict)
    extractors: dict[str, Callable[[Any], float | None]] = field(default_factory=dict)

    def cost(
        self, response: Any, *, provider: str, model_name: str, pricing: TokenPricing | None
    ) -> float | None:
        """US dollars of a response; None when it tells neither price nor tokens.

        Raises ConfigurationError when it has tokens and no price is known.
        """
        if (price := self.stated(response, provider=provider)) is not None:
            return price
        usage = token_usage(response, provider)
        if usage is None:
            return None
        return _usage_cost(usage, self._pricing(provider, model_name, pricing))

    def stated(self, response: Any, *, provider: str) -> float | None:
        """Returns the price in the response or from the provider's extractor; None if neither has one."""
        if (price := stated_cost(response)) is not None:
            return price
        extractor = self.extractors.get(provider)
        extracted = None if extractor is None else extractor(response)
        return None if extracted is None else float(extracted)

    def pricing_of(self, model_name: str) -> TokenPricing | None:
        """A model's price: registered, else published, else an extension's; None where none is known.

        "openai/gpt-4.1" and "gpt-4.1-2025-04-14" have the price of "gpt-4.1" where they have none of their
        own. Nobody is asked: this is called between the requests of a step.
        """
        if (registered := self._registered(model_name)) is not None:
            return registered
        known = (
            MODEL_TOKEN_PRICING.get(name) or _pricing_in_extensions(name) for name in names_of(model_name)
        )
        return next((pricing for pricing in known if pricing is not None), None)

    def _registered(self, model_name: str) -> TokenPricing | None:
        """Returns the price under this name, else under the same with or without its provider."""
        if model_name in self.registered:
            return self.registered[model_name]
        bare = names_of(model_name)[-1]
        return next((price for name, price in self.registered.items() if names_of(name)[-1] == bare), None)

    def _pricing(self, provider: str, model_name: str, override: TokenPricing | None) -> TokenPricing:
        known = self.pricing_of(model_name) or TokenPricing()
        over = {name: value for name, value in vars(override or TokenPricing()).items() if value is not None}
        pricing = dataclasses.replace(known, **over)
        if pricing.prompt_per_million is None or pricing.completion_per_million is None:
            raise ConfigurationError(
                f"No pricing configured for model {model_name!r} of provider {provider!r}: call "
                "register_model_pricing(model, prompt_per_million=..., completion_per_million=...), "
                "give the prices with the call, or register_cost_extractor"
            )
        return pricing


def _usage_cost(usage: TokenUsage, pricing: TokenPricing) -> float:
    """US dollars. A cache without a price of its own is charged as prompt."""
    prompt, completion = pricing.prompt_per_million or 0.0, pricing.completion_per_million or 0.0

    def or_prompt(price: float | None) -> float:
        return prompt if price is None else price

    usd = usage.prompt * prompt + usage.completion * completion
    usd += usage.cached_prompt * or_prompt(pricing.cached_prompt_per_million)
    usd += usage.cache_creation * or_prompt(pricing.cache_creation_per_million)
    usd += usage.cache_read * or_prompt(pricing.cache_read_per_million)
    return usd / MILLION


def names_of(model_name: str) -> list[str]:
    """Returns the names of a model in a table: as it is, without providers in front and a date behind."""
    names = [model_name]
    while (parts := names[-1].partition("/"))[0] in RESOLD and parts[2]:
        names.append(parts[2])
    undated = _DATE.sub("", names[-1])
    return names if undated == names[-1] else [*names, undated]


def _pricing_in_extensions(model_name: str) -> TokenPricing | None:
    return next((found for ask in load_extensions(PRICES).values() if (found := ask(model_name))), None)

"""Options of a model that is asked, by the names that litellm's users write, and what its answers cost.

Unknown options are refused. Where no price is known, a limit in dollars cannot be held, and that is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from art.errors import ConfigurationError, did_you_mean
from art.tracking.metrics_builder import active_builder
from art.tracking.prices import MILLION, PriceBook, TokenPricing

FREE = TokenPricing(prompt_per_million=0.0, completion_per_million=0.0)
"""The price of a model that runs on the user's own machine."""


def _book() -> PriceBook:
    """Returns the prices: those registered with the active builder override the published ones."""
    builder = active_builder()
    return PriceBook() if builder is None else builder.prices


def usd_of(response: Any, *, provider: str, model: str, pricing: TokenPricing | None) -> float | None:
    """US dollars of a response: as it tells itself, else its tokens times the price; None: unknown."""
    if pricing is not None:
        return _book().cost(response, provider=provider, model_name=model, pricing=pricing)
    if pricing_of(model, None) is None:
        return _book().stated(response, provider=provider)
    return _book().cost(response, provider=provider, model_name=model, pricing=None)


def pricing_of(model: str, pricing: TokenPricing | None) -> TokenPricing | None:
    """The price of a model's tokens; None where none is known."""
    known = pricing if pricing is not None else _book().pricing_of(model)
    is_complete = known is not None and None not in (known.prompt_per_million, known.completion_per_million)
    return known if is_complete else None


SAMPLING = (
    *("temperature", "top_p", "max_tokens", "max_completion_tokens", "presence_penalty", "frequency_penalty"),
    *("seed", "stop", "user", "reasoning_effort", "verbosity", "service_tier"),
)
"""Sent as they are."""
OWN_FIELDS = ("top_k", "min_p", "repetition_penalty", "thinking")
"""Sent as they are, though OpenAI has no such fields."""
ELSEWHERE = (
    *("api_base", "base_url", "api_key", "organization", "timeout", "num_retries", "max_retries"),
    *("extra_headers", "extra_body", "input_cost_per_token", "output_cost_per_token", "cache_name"),
)
KNOWN = (*ELSEWHERE, *SAMPLING, *OWN_FIELDS)


@dataclass(frozen=True, kw_only=True)
class Params:
    """The checked parameters of a judge or generator."""

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    organization: str | None = None
    timeout: float | None = None
    """Seconds of one attempt."""
    attempts: int | None = None
    """How often a question is asked that is not answered."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields that OpenAI's client does not name."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    pricing: TokenPricing | None = None
    cache_name: str | None = None
    """What the cache knows the endpoint by; None: its address."""

    def identity(self) -> list[Any]:
        """The options that change an answer."""
        options = [dict(self.sampling), dict(self.body)]
        return options if self.cache_name is None else [*options, self.cache_name]


def read_params(
    params: Mapping[str, Any] | None, *, base_url: str | None = None, api_key: str | None = None
) -> Params:
    """The options, with the address and key that were given beside them.

    Raises ConfigurationError for unknown names, values out of range, and an address or key given twice and
    differently.
    """
    given = {name: value for name, value in (params or {}).items() if value is not None}
    for name in given:
        if name not in KNOWN:
            hint = did_you_mean(name, KNOWN)
            raise ConfigurationError(
                # Without its value: it may be a key under a misspelt name.
                f"params: {name!r} is not known{hint and f', {hint}'}; known: {', '.join(KNOWN)}. Fields "
                "that only your endpoint knows go into extra_body."
            )
    return Params(
        base_url=_checked_option("base_url", base_url, given.get("base_url"), given.get("api_base")),
        api_key=_checked_option("api_key", api_key, given.get("api_key")),
        organization=given.get("organization"),
        timeout=_seconds(given.get("timeout")),
        attempts=_attempts(
            _checked_option("num_retries", given.get("num_retries"), given.get("max_retries"))
        ),
        headers={str(key): str(value) for key, value in _mapping(given, "extra_headers").items()},
        body=_mapping(given, "extra_body") | {name: given[name] for name in OWN_FIELDS if name in given},
        sampling={name: given[name] for name in SAMPLING if name in given},
        pricing=_pricing(given),
        cache_name=None if "cache_name" not in given else str(given["cache_name"]),
    )


def _checked_option(name: str, *values: Any) -> Any:
    chosen = [value for value in values if value is not None]
    if any(value != chosen[0] for value in chosen):
        # A key is not shown: messages end up in logs.
        raise ConfigurationError(f"{name} is given twice, and not the same; give it once")
    return chosen[0] if chosen else None


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"timeout={value!r}: seconds of one attempt, above 0")
    return float(value)


def _attempts(retries: Any) -> int | None:
    if retries is None:
        return None
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ConfigurationError(f"num_retries={retries!r}: how often to ask again, 0 or more")
    return retries + 1


def _mapping(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = params.get(name, {})
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name}= is a {type(value).__name__}: a dictionary is needed")
    return dict(value)


def _pricing(params: Mapping[str, Any]) -> TokenPricing | None:
    prompt, completion = params.get("input_cost_per_token"), params.get("output_cost_per_token")
    if prompt is None and completion is None:
        return None
    if prompt is None or completion is None:
        raise ConfigurationError(
            "input_cost_per_token and output_cost_per_token (US dollars) are given together or not at all"
        )
    return TokenPricing(
        prompt_per_million=float(prompt) * MILLION, completion_per_million=float(completion) * MILLION
    )

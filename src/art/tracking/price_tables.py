"""Published prices, in US dollars per million tokens. They change: what a program registers wins.

Sources: the public table of prices that litellm 1.109.1 carries (November 2026), for short contexts where a
price depends on the length, and for cache writes of five minutes; Tinker, thinkingmachines.ai/tinker
(5 January 2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from art.errors import ConfigurationError

MILLION = 1e6


@dataclass(frozen=True)
class ModelPricing:
    """What a training service asks for a base model: for prompt tokens, sampled tokens and trained tokens."""

    prefill: float
    sample: float
    train: float


@dataclass(frozen=True, kw_only=True)
class TokenPricing:
    """What an API asks for a model's tokens. None: a price that is not given; see `PriceBook`."""

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


def _cached(prompt: float, cached: float | None, completion: float) -> TokenPricing:
    """Of a service that keeps a cache by itself."""
    return TokenPricing(
        prompt_per_million=prompt, cached_prompt_per_million=cached, completion_per_million=completion
    )


def _written(prompt: float, creation: float, read: float, completion: float) -> TokenPricing:
    """Of a service whose cache the caller writes."""
    return TokenPricing(
        prompt_per_million=prompt,
        cached_prompt_per_million=read,
        cache_creation_per_million=creation,
        cache_read_per_million=read,
        completion_per_million=completion,
    )


MODEL_TOKEN_PRICING = MappingProxyType(
    {
        "gpt-6-astra": _cached(10.0, 1.0, 50.0),
        "gpt-6.1-sol": _cached(2.0, 0.1, 10.0),
        "gpt-6.1-terra": _cached(1.0, 0.05, 5.0),
        "gpt-6-sol": _cached(2.0, 0.2, 10.0),
        "gpt-6-luna": _cached(0.1, 0.01, 0.5),
        "gpt-5.6": _cached(4.0, 0.4, 20.0),
        "gpt-5.6-sol": _cached(4.0, 0.4, 20.0),
        "gpt-5.6-terra": _cached(2.0, 0.2, 12.0),
        "gpt-5.6-luna": _cached(0.2, 0.02, 1.2),
        "gpt-5.5": _cached(5.0, 0.5, 30.0),
        "gpt-5.4": _cached(2.5, 0.25, 15.0),
        "gpt-5.4-mini": _cached(0.75, 0.075, 4.5),
        "gpt-5.4-nano": _cached(0.2, 0.02, 1.25),
        "gpt-5.2": _cached(1.75, 0.175, 14.0),
        "gpt-5.1": _cached(1.25, 0.125, 10.0),
        "gpt-5": _cached(1.25, 0.125, 10.0),
        "gpt-5-mini": _cached(0.25, 0.025, 2.0),
        "gpt-5-nano": _cached(0.05, 0.005, 0.4),
        "gpt-4.1": _cached(2.0, 0.5, 8.0),
        "gpt-4.1-mini": _cached(0.4, 0.1, 1.6),
        "gpt-4.1-nano": _cached(0.1, 0.025, 0.4),
        "gpt-4o": _cached(2.5, 1.25, 10.0),
        "gpt-4o-mini": _cached(0.15, 0.075, 0.6),
        "gpt-4-turbo": _cached(10.0, None, 30.0),
        "gpt-4": _cached(30.0, None, 60.0),
        "gpt-3.5-turbo": _cached(0.5, None, 1.5),
        "o1": _cached(15.0, 7.5, 60.0),
        "o3": _cached(2.0, 0.5, 8.0),
        "o3-mini": _cached(1.1, 0.55, 4.4),
        "o3-pro": _cached(20.0, None, 80.0),
        "o4-mini": _cached(1.1, 0.275, 4.4),
        "gpt-4o-2024-05-13": _cached(5.0, None, 15.0),
        "claude-fable-5-1": _written(10.0, 12.5, 0.25, 50.0),
        "claude-fable-5": _written(10.0, 12.5, 1.0, 50.0),
        "claude-opus-5-5": _written(4.0, 5.0, 0.2, 20.0),
        "claude-opus-5": _written(5.0, 6.25, 0.5, 25.0),
        "claude-opus-4-8": _written(5.0, 6.25, 0.5, 25.0),
        "claude-opus-4-7": _written(5.0, 6.25, 0.5, 25.0),
        "claude-opus-4-6": _written(5.0, 6.25, 0.5, 25.0),
        "claude-opus-4-5": _written(5.0, 6.25, 0.5, 25.0),
        "claude-sonnet-5-5": _written(2.0, 2.5, 0.1, 10.0),
        "claude-sonnet-5": _written(2.0, 2.5, 0.2, 10.0),
        "claude-sonnet-4-6": _written(3.0, 3.75, 0.3, 15.0),
        "claude-sonnet-4-5": _written(3.0, 3.75, 0.3, 15.0),
        "claude-haiku-5-5": _written(0.1, 0.125, 0.01, 0.5),
        "claude-haiku-4-5": _written(1.0, 1.25, 0.1, 5.0),
        "gemini-4-argon": _cached(2.0, 0.1, 10.0),
        "gemini-3.8-flash": _cached(0.75, 0.075, 3.75),
        "gemini-3.7-flash": _cached(0.75, 0.075, 3.75),
        "gemini-3.6-flash": _cached(0.75, 0.075, 3.75),
        "gemini-3.5-flash": _cached(1.5, 0.15, 9.0),
        "gemini-3.5-flash-lite": _cached(0.3, 0.03, 2.5),
        "gemini-3.1-pro-preview": _cached(2.0, 0.2, 12.0),
        "gemini-3.1-flash-lite": _cached(0.25, 0.025, 1.5),
        "gemini-3-flash-preview": _cached(0.5, 0.05, 3.0),
        "gemini-2.5-pro": _cached(1.25, 0.125, 10.0),
        "gemini-2.5-flash": _cached(0.3, 0.03, 2.5),
        "gemini-2.5-flash-lite": _cached(0.1, 0.01, 0.4),
        "deepseek-v4-pro": _cached(1.32, 0.044, 3.96),
        "deepseek-v4-flash": _cached(0.3, 0.006, 1.2),
        "deepseek-chat": _cached(0.28, 0.028, 0.42),
        "deepseek-reasoner": _cached(0.28, 0.028, 0.42),
        "grok-4.7": _cached(2.0, 0.5, 6.0),
        "grok-4.6": _cached(2.0, 0.5, 6.0),
        "grok-4.5": _cached(2.0, 0.3, 6.0),
        "grok-4.3": _cached(1.25, 0.2, 2.5),
        "mistral-large-latest": _cached(0.5, 0.05, 1.5),
        "mistral-medium-latest": _cached(1.5, 0.15, 7.5),
        "mistral-small-latest": _cached(0.15, 0.015, 0.6),
    }
)
"""By the provider's own name: without `openai/` in front, without a date behind."""

MODEL_PRICING = MappingProxyType(
    {
        "Qwen/Qwen3-4B-Instruct-2507": ModelPricing(0.07, 0.22, 0.22),
        "Qwen/Qwen3-8B": ModelPricing(0.13, 0.40, 0.40),
        "Qwen/Qwen3-30B-A3B": ModelPricing(0.12, 0.30, 0.36),
        "Qwen/Qwen3-VL-30B-A3B-Instruct": ModelPricing(0.18, 0.44, 0.53),
        "Qwen/Qwen3-32B": ModelPricing(0.49, 1.47, 1.47),
        "Qwen/Qwen3-235B-A22B-Instruct-2507": ModelPricing(0.68, 1.70, 2.04),
        "Qwen/Qwen3-VL-235B-A22B-Instruct": ModelPricing(1.02, 2.56, 3.07),
        "meta-llama/Llama-3.2-1B": ModelPricing(0.03, 0.09, 0.09),
        "meta-llama/Llama-3.2-3B": ModelPricing(0.06, 0.18, 0.18),
        "meta-llama/Llama-3.1-8B": ModelPricing(0.13, 0.40, 0.40),
        "meta-llama/Llama-3.1-70B": ModelPricing(1.05, 3.16, 3.16),
        "deepseek-ai/DeepSeek-V3.1": ModelPricing(1.13, 2.81, 3.38),
        "openai/gpt-oss-120b": ModelPricing(0.18, 0.44, 0.52),
        "openai/gpt-oss-20b": ModelPricing(0.12, 0.30, 0.36),
        "moonshotai/Kimi-K2-Thinking": ModelPricing(0.98, 2.44, 2.93),
    }
)

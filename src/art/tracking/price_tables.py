"""Published prices, in US dollars per million tokens. They change: what a program registers wins.

Sources: OpenAI, developers.openai.com/api/docs/models (September 2026); Anthropic,
platform.claude.com/docs/en/about-claude/pricing (cache writes: those of five minutes; October 2026);
Tinker, thinkingmachines.ai/tinker (5 January 2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

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


def _openai(prompt: float, cached: float, completion: float) -> TokenPricing:
    return TokenPricing(
        prompt_per_million=prompt, cached_prompt_per_million=cached, completion_per_million=completion
    )


MODEL_TOKEN_PRICING = MappingProxyType(
    {
        "gpt-4.1": _openai(2.0, 0.5, 8.0),
        "gpt-4.1-mini": _openai(0.4, 0.1, 1.6),
        "gpt-4.1-nano": _openai(0.1, 0.025, 0.4),
        "claude-sonnet-4-6": TokenPricing(
            prompt_per_million=3.0,
            completion_per_million=15.0,
            cache_creation_per_million=3.75,
            cache_read_per_million=0.3,
        ),
    }
)

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

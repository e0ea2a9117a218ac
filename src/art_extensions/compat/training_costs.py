"""The names of `art.costs`: what a training service asks for a base model's tokens.

Source: Tinker, thinkingmachines.ai/tinker (5 January 2026), in US dollars per million tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from art.errors import ConfigurationError
from art.tracking.prices import MILLION, CostCalculator, TokenPricing


@dataclass(frozen=True)
class ModelPricing:
    """A training service's prices of a base model: for prompt tokens, sampled tokens and trained tokens."""

    prefill: float
    sample: float
    train: float


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


def price_of_sampling(model_name: str) -> TokenPricing | None:
    """Returns the service's price of a base model's prompts and completions, or None."""
    pricing = MODEL_PRICING.get(model_name)
    if pricing is None:
        return None
    return TokenPricing(prompt_per_million=pricing.prefill, completion_per_million=pricing.sample)


def get_model_pricing(model_name: str, *, strict: bool = False) -> ModelPricing | None:
    """The price of a base model, or None. strict: raises ConfigurationError for an unknown one instead."""
    pricing = MODEL_PRICING.get(model_name)
    if pricing is None and strict:
        raise ConfigurationError(
            f"No pricing configured for {model_name!r}; known: {', '.join(sorted(MODEL_PRICING))}"
        )
    return pricing


def tokens_to_cost(tokens: float, price_per_million: float) -> float:
    """US dollars. Example: 2,000,000 tokens at 0.4 are 0.8."""
    return tokens * price_per_million / MILLION


def compute_sample_costs(
    *, prompt_tokens: float, completion_tokens: float, pricing: ModelPricing, cost_context: str
) -> dict[str, float]:
    """Returns the cost of sampling as metrics: `costs/<context>/tinker_prefill` and `.../tinker_sample`."""
    return {
        f"costs/{cost_context}/tinker_prefill": tokens_to_cost(prompt_tokens, pricing.prefill),
        f"costs/{cost_context}/tinker_sample": tokens_to_cost(completion_tokens, pricing.sample),
    }


def build_cost_calculator(pricing: ModelPricing) -> CostCalculator:
    """A calculator for `model.set_cost_calculator`."""

    def calculate(prompt_tokens: int, completion_tokens: int, cost_context: str) -> dict[str, float]:
        return compute_sample_costs(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            pricing=pricing,
            cost_context=cost_context,
        )

    return calculate


def compute_train_cost(train_tokens: float, pricing: ModelPricing) -> float:
    """Returns the cost of training on a number of tokens, in US dollars."""
    return tokens_to_cost(train_tokens, pricing.train)

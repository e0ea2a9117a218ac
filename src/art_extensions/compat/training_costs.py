"""The functions of `art.costs`: what a training service asks for a base model's tokens."""

from __future__ import annotations

from art.errors import ConfigurationError
from art.tracking.prices import MILLION, MODEL_PRICING, CostCalculator, ModelPricing


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

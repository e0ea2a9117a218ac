"""What a run costs at a service that charges for tokens of prompts, samples and training.

A run on your own machine is charged nothing by the token: nothing here is reported unless a program asks.
"""

from __future__ import annotations

from collections.abc import Callable

from art.errors import ConfigurationError
from art.tracking.price_tables import MILLION, MODEL_PRICING, ModelPricing

CostCalculator = Callable[[int, int, str], dict[str, float]]
"""(prompt tokens, completion tokens, cost context) -> US dollars by metric, `{"costs/...": usd}`."""


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
    """What sampling cost, as metrics: `costs/<context>/tinker_prefill` and `.../tinker_sample`."""
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
    """What training on so many tokens cost, in US dollars."""
    return tokens_to_cost(train_tokens, pricing.train)


def no_costs(prompt_tokens: int, completion_tokens: int, cost_context: str) -> dict[str, float]:
    """The calculator of a model that costs nothing by the token."""
    return {}

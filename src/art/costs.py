"""Prices of tokens, at the import path that users know; the code lives in `art.tracking`."""

from __future__ import annotations

from art.tracking.price_tables import MODEL_PRICING, ModelPricing
from art.tracking.training_costs import (
    CostCalculator,
    build_cost_calculator,
    compute_sample_costs,
    compute_train_cost,
    get_model_pricing,
    tokens_to_cost,
)

__all__ = [
    "MODEL_PRICING",
    "CostCalculator",
    "ModelPricing",
    "build_cost_calculator",
    "compute_sample_costs",
    "compute_train_cost",
    "get_model_pricing",
    "tokens_to_cost",
]

# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.prices import CostCalculator as CostCalculator
from art_extensions.compat.training_costs import MODEL_PRICING as MODEL_PRICING
from art_extensions.compat.training_costs import ModelPricing as ModelPricing
from art_extensions.compat.training_costs import build_cost_calculator as build_cost_calculator
from art_extensions.compat.training_costs import compute_sample_costs as compute_sample_costs
from art_extensions.compat.training_costs import compute_train_cost as compute_train_cost
from art_extensions.compat.training_costs import get_model_pricing as get_model_pricing
from art_extensions.compat.training_costs import tokens_to_cost as tokens_to_cost

__all__ = ["CostCalculator", "MODEL_PRICING", "ModelPricing", "build_cost_calculator", "compute_sample_costs", "compute_train_cost", "get_model_pricing", "tokens_to_cost"]


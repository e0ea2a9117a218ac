# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.call_costs import track_api_cost as track_api_cost
from art.tracking.metrics_builder import CostExtractor as CostExtractor
from art.tracking.prices import MODEL_TOKEN_PRICING as MODEL_TOKEN_PRICING
from art.tracking.prices import TokenPricing as TokenPricing

__all__ = ["CostExtractor", "MODEL_TOKEN_PRICING", "TokenPricing", "track_api_cost"]


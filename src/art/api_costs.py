"""`track_api_cost`, at the import path that users know; the code lives in `art.tracking`."""

from __future__ import annotations

from art.tracking.api_cost import track_api_cost
from art.tracking.builder import CostExtractor
from art.tracking.price_tables import MODEL_TOKEN_PRICING, TokenPricing

__all__ = ["MODEL_TOKEN_PRICING", "CostExtractor", "TokenPricing", "track_api_cost"]

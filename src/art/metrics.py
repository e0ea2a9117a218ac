"""`MetricsBuilder`, at the import path that users know; the code lives in `art.tracking`."""

from __future__ import annotations

from art.tracking.api_cost import track_api_cost
from art.tracking.builder import CostExtractor, MetricsBuilder

__all__ = ["CostExtractor", "MetricsBuilder", "track_api_cost"]

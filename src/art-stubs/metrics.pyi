# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.call_costs import track_api_cost as track_api_cost
from art.tracking.metrics_builder import CostExtractor as CostExtractor
from art.tracking.metrics_builder import MetricsBuilder as MetricsBuilder

__all__ = ["CostExtractor", "MetricsBuilder", "track_api_cost"]


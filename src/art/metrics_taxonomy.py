"""Names of metrics, at the import path that users know; the code lives in `art.tracking`."""

from __future__ import annotations

from art.tracking.names import GRADIENT_STEPS as TRAIN_GRADIENT_STEPS_KEY
from art.tracking.names import SECTIONS as METRIC_SECTIONS
from art.tracking.names import SPLITS as METRIC_SPLITS
from art.tracking.names import average_metrics, canonical_metrics, canonical_name, cumulative_name, is_managed

__all__ = [
    "METRIC_SECTIONS",
    "METRIC_SPLITS",
    "TRAIN_GRADIENT_STEPS_KEY",
    "average_metrics",
    "canonical_metrics",
    "canonical_name",
    "cumulative_name",
    "is_managed",
]

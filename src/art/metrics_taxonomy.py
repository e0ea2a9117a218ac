"""Names of metrics, at the import path that users know; the code lives in `art.tracking`."""

from __future__ import annotations

from art.tracking.averages import (
    TrajectoryBatchSummary,
    build_data_metrics_from_summary,
    summarize_trajectory_groups,
)
from art.tracking.averages import build_data_metrics_from_summary as build_training_summary_metrics
from art.tracking.names import GRADIENT_STEPS as TRAIN_GRADIENT_STEPS_KEY
from art.tracking.names import SECTIONS as METRIC_SECTIONS
from art.tracking.names import SPLITS as METRIC_SPLITS
from art.tracking.names import average_metrics, canonical_metrics, canonical_name, cumulative_name, is_managed
from art.tracking.names import average_metrics as average_metric_samples

__all__ = [
    "METRIC_SECTIONS",
    "METRIC_SPLITS",
    "TRAIN_GRADIENT_STEPS_KEY",
    "TrajectoryBatchSummary",
    "average_metric_samples",
    "average_metrics",
    "build_data_metrics_from_summary",
    "build_training_summary_metrics",
    "canonical_metrics",
    "canonical_name",
    "cumulative_name",
    "is_managed",
    "summarize_trajectory_groups",
]

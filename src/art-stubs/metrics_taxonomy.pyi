# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.averages import TrajectoryBatchSummary as TrajectoryBatchSummary
from art.tracking.averages import build_data_metrics_from_summary as build_data_metrics_from_summary
from art.tracking.averages import build_data_metrics_from_summary as build_training_summary_metrics
from art.tracking.averages import summarize_trajectory_groups as summarize_trajectory_groups
from art.tracking.names import SECTIONS as METRIC_SECTIONS
from art.tracking.names import SPLITS as METRIC_SPLITS
from art.tracking.names import GRADIENT_STEPS as TRAIN_GRADIENT_STEPS_KEY
from art.tracking.names import average_metrics as average_metric_samples
from art.tracking.names import average_metrics as average_metrics
from art.tracking.names import canonical_metrics as canonical_metrics
from art.tracking.names import canonical_name as canonical_name
from art.tracking.names import cumulative_name as cumulative_name
from art.tracking.names import is_managed as is_managed

__all__ = ["METRIC_SECTIONS", "METRIC_SPLITS", "TRAIN_GRADIENT_STEPS_KEY", "TrajectoryBatchSummary", "average_metric_samples", "average_metrics", "build_data_metrics_from_summary", "build_training_summary_metrics", "canonical_metrics", "canonical_name", "cumulative_name", "is_managed", "summarize_trajectory_groups"]


"""Benchmark tables and charts: the import path that users know. The code is in `art.benchmarking`."""

from __future__ import annotations

# Functions must win over the modules of the same names, whichever is imported first.
from art.utils.benchmarking.charts import percentage_comparison_bar_chart, training_progress_chart
from art.utils.benchmarking.filter_model_split import filter_rename_model_split
from art.utils.benchmarking.load_aggregated_trajectories import load_aggregated_trajectories
from art.utils.benchmarking.load_latest_metrics import load_latest_metrics
from art.utils.benchmarking.load_trajectories import load_trajectories
from art.utils.benchmarking.log_constant_metrics_wandb import log_constant_metrics_wandb
from art.utils.benchmarking.pull_model_trajectories import pull_model_trajectories
from art.utils.benchmarking.types import BenchmarkModelKey

__all__ = [
    "BenchmarkModelKey",
    "filter_rename_model_split",
    "load_aggregated_trajectories",
    "load_latest_metrics",
    "load_trajectories",
    "log_constant_metrics_wandb",
    "percentage_comparison_bar_chart",
    "pull_model_trajectories",
    "training_progress_chart",
]

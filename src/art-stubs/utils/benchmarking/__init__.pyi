# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.buckets.bucket_trajectories import pull_model_trajectories as pull_model_trajectories
from art_extensions.compat.benchmark_charts import percentage_comparison_bar_chart as percentage_comparison_bar_chart
from art_extensions.compat.benchmark_charts import training_progress_chart as training_progress_chart
from art_extensions.compat.benchmarking import BenchmarkModelKey as BenchmarkModelKey
from art_extensions.compat.benchmarking import filter_rename_model_split as filter_rename_model_split
from art_extensions.compat.benchmarking import load_aggregated_trajectories as load_aggregated_trajectories
from art_extensions.compat.benchmarking import load_latest_metrics as load_latest_metrics
from art_extensions.compat.benchmarking import load_trajectories as load_trajectories
from art_extensions.compat.benchmarking import log_constant_metrics_wandb as log_constant_metrics_wandb

__all__ = ["BenchmarkModelKey", "filter_rename_model_split", "load_aggregated_trajectories", "load_latest_metrics", "load_trajectories", "log_constant_metrics_wandb", "percentage_comparison_bar_chart", "pull_model_trajectories", "training_progress_chart"]


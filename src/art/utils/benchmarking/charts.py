"""Charts of logged trajectories. The code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.comparison_chart import percentage_comparison_bar_chart
from art.benchmarking.progress_chart import training_progress_chart

__all__ = ["percentage_comparison_bar_chart", "training_progress_chart"]

"""Charts of logged trajectories. The code is in `art.benchmarking`."""

from __future__ import annotations

# Functions must win over the modules of the same names, whichever is imported first.
from art.utils.benchmarking.charts.percentage_comparison_bar_chart import percentage_comparison_bar_chart
from art.utils.benchmarking.charts.training_progress_chart import training_progress_chart

__all__ = ["percentage_comparison_bar_chart", "training_progress_chart"]

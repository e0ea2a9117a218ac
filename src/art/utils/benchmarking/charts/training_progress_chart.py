"""A chart of steps; the code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.progress_chart import training_progress_chart

__all__ = ["training_progress_chart"]

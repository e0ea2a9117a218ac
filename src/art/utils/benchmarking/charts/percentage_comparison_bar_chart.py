"""A chart of models; the code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.comparison_chart import percentage_comparison_bar_chart

__all__ = ["percentage_comparison_bar_chart"]

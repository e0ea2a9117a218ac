"""Means of the newest step. The code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.aggregates import load_latest_metrics

__all__ = ["load_latest_metrics"]

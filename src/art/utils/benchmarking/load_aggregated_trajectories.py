"""Means of logged trajectories. The code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.aggregates import load_aggregated_trajectories

__all__ = ["load_aggregated_trajectories"]

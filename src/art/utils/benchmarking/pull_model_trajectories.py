"""Trajectory logs from a bucket. The code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.pull import pull_model_trajectories

__all__ = ["pull_model_trajectories"]

"""Logged trajectories as a table. The code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.load import load_trajectories

__all__ = ["load_trajectories"]

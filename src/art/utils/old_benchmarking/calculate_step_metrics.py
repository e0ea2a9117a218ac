"""The spread of rewards. The code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.step_spread import calculate_step_std_dev

__all__ = ["calculate_step_std_dev"]

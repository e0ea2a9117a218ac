"""A baseline in Weights & Biases. The code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.constants import log_constant_metrics_wandb

__all__ = ["log_constant_metrics_wandb"]

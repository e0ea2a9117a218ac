"""The mean reward of some rollouts: the import path that users know."""

from __future__ import annotations

from art.benchmarking.rollout import benchmark_rollout

__all__ = ["benchmark_rollout"]

"""Names of models in charts. The code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.model_key import BenchmarkModelKey

__all__ = ["BenchmarkModelKey"]

"""Rows of some models. The code is in `art.benchmarking`."""

from __future__ import annotations

from art.benchmarking.model_key import filter_rename_model_split

__all__ = ["filter_rename_model_split"]

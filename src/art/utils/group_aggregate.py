"""Aggregates over groups: an import path of older programs, without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt

INSTEAD = "read the logs with `art.utils.benchmarking.load_trajectories` and aggregate with polars"


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)

"""Aggregates over groups: a path without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import Unbuilt


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Unbuilt(
        f"{__name__}.{name}",
        "read the logs with `art.utils.benchmarking.load_trajectories` and aggregate with polars",
    )

"""A training batch in the client's memory: no names, because the trainer makes its own."""

from __future__ import annotations

from typing import Any

from art.unbuilt import Unbuilt


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Unbuilt(
        f"{__name__}.{name}", "give `backend.train` the trajectories; the trainer makes its batches"
    )

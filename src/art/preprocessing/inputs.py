"""A training batch in the client's memory: an import path of older programs, without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt

INSTEAD = "give `backend.train` the trajectories; the trainer makes its batches"


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)

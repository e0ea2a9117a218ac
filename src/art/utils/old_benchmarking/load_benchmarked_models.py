"""A tool of older programs that has no code any more."""

from __future__ import annotations

from typing import Any

from art.benchmarking.older_names import OLDER_NAMES
from art.unbuilt import unbuilt_names


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, OLDER_NAMES, name)

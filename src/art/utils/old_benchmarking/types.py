"""What the first benchmark tools named their models by: names without code behind them."""

from __future__ import annotations

from typing import Any

from art.benchmarking.older_names import OLDER_NAMES
from art.unbuilt import unbuilt_names


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, OLDER_NAMES, name)

"""Processes that end with the program: an import path of older programs, without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt

INSTEAD = "`art.LocalBackend` ends its server by itself, and nothing outlives the program"


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)

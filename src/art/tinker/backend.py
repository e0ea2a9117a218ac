"""Tinker's service as a backend: an import path of older programs, without code behind it."""

from __future__ import annotations

from typing import Any

from art.tinker import INSTEAD
from art.unbuilt import unbuilt


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)

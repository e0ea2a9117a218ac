"""Adapters of experts in other names: an import path of older programs, without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt

INSTEAD = "checkpoints are written as PEFT and vLLM read them"


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)

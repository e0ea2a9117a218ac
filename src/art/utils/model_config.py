"""The parts of a chat template that mark turns: an import path of older programs, without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt

INSTEAD = "nothing needs them: what the assistant said is known by its tokens, not found by markers"


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)

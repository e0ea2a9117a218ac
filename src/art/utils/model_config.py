"""The parts of a chat template that mark turns: a path without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import Unbuilt


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Unbuilt(
        f"{__name__}.{name}",
        "nothing needs them: what the assistant said is known by its tokens, not found by markers",
    )

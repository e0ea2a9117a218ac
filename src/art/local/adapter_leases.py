"""Who uses which step: an import path of older programs, without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt

INSTEAD = "`async with backend.adapter_lease(model, step)` keeps a step for as long as it is used"


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)

"""The trainer's numbers in the program's memory: an import path of older programs, without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt

INSTEAD = "`model.read_state()` has the numbers of a run, and `StatusReporter` shows them while it goes on"


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)

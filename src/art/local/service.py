"""The trainer in the program's process: an import path of older programs, without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt

INSTEAD = "the server trains and samples in processes of its own, see `server_options` of LocalBackend"


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)

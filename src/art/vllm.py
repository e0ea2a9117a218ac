"""vLLM inside of the program: an import path of older programs, without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt

INSTEAD = "vLLM runs as a program of its own; docs/vllm.md says how a server starts it"


def __getattr__(name: str) -> Any:
    return unbuilt(__name__, INSTEAD, name)

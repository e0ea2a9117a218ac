"""The log of a LangGraph run: a name without code behind it, and none planned, because nothing is pickled."""

from __future__ import annotations

from typing import Any

from art.langgraph import INSTEAD
from art.unbuilt import unbuilt_names

NAMES = {"FileLogger": INSTEAD}


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)

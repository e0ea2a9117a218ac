"""The prefix cache of a proxy to Tinker's service: a name without code behind it."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt_names

INSTEAD = "the server's engine keeps the keys and values of common prefixes by itself"
NAMES = dict.fromkeys(("LRUTrieCache",), INSTEAD)


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)

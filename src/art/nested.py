"""Dicts in dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def deep_merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `under`, dicts key by key; neither is changed.

    >>> deep_merge({"a": {"x": 1}, "b": 1}, {"a": {"y": 2}, "b": {}})
    {'a': {'x': 1, 'y': 2}, 'b': {}}
    """
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = deep_merge(below, value) if both else value  # type: ignore[arg-type]
    return merged

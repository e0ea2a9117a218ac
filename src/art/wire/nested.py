"""Dicts in dicts: merged key by key, and with the secret keys in them hidden.

It stands alone because what asks, logs and writes all need it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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


SECRETS = frozenset({"inference_api_key", "api_key", "token", "hf_token", "hub_token"})
"""Names under which models and their settings hold keys."""
MASK = "***"


class HiddenKey(str):
    """A key: a string in every way, but its `repr` is `'***'`, in a notebook's cell and inside of dicts."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK)


def without_keys(value: Any, names: Collection[str] = SECRETS) -> Any:
    """The same with None in place of each key; for files and services that others read.

    names: of entries that are keys; a `HiddenKey` is one anywhere.

    >>> without_keys({"name": "a", "config": [{"api_key": "sk-1", "top_k": 3}]})
    {'name': 'a', 'config': [{'api_key': None, 'top_k': 3}]}
    """
    return _each_key(value, names, lambda key: None)


def with_keys_hidden(value: Any) -> Any:
    """A copy in which each key is a `HiddenKey`; for a dict that is used, and may be printed."""
    return _each_key(value, SECRETS, HiddenKey)


def _each_key(value: Any, names: Collection[str], put: Callable[[str], str | None]) -> Any:
    if isinstance(value, HiddenKey):
        return put(value)
    if isinstance(value, Mapping):
        return {
            name: put(entry) if name in names and isinstance(entry, str) else _each_key(entry, names, put)
            for name, entry in value.items()
        }
    return [_each_key(entry, names, put) for entry in value] if isinstance(value, list | tuple) else value

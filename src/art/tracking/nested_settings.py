"""Settings of several levels as names with dots: how trackers and the pages of the runs list them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def named_leaves(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each value with the names on the way to it; an empty mapping is a value.

    >>> dict(named_leaves({"lora": {"r": 8}, "seed": 0, "tags": {}}))
    {'lora.r': 8, 'seed': 0, 'tags': {}}
    """
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from named_leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value

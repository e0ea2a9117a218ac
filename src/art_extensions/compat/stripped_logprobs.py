"""Replies without their logprobs, for logs and traces."""

from __future__ import annotations

import copy
import logging
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


def strip_logprobs(obj: T) -> T:
    """Returns a deep copy without logprobs: keys named `logprobs` are removed, attributes of that name become
    None.

    What cannot be copied (an open socket, a lock) is returned as it is, with a warning in the log. What says
    that its copies are itself (clients, backends) is left alone.
    """
    memo: dict[int, Any] = {}
    try:
        copied = copy.deepcopy(obj, memo)
    except Exception as error:  # noqa: BLE001 - the user's objects may raise anything here, and a trace must not fail
        log.warning(
            "strip_logprobs: %s cannot be copied and keeps its logprobs: %r", type(obj).__name__, error
        )
        return obj
    ours = {id(new) for old, new in memo.items() if id(new) != old}
    _strip(copied, ours)
    return copied


def _strip(copied: Any, ours: set[int]) -> None:
    waiting = [copied]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple):
            waiting += item
            continue
        if id(item) not in ours:
            continue
        ours.discard(id(item))  # once is enough, also where things refer to each other
        if isinstance(item, dict):
            item.pop("logprobs", None)
            waiting += item.values()
        elif isinstance(item, list | set | frozenset):
            waiting += item
        else:
            waiting += _fields(item)


def _fields(item: Any) -> list[Any]:
    found: list[Any] = []
    # Pydantic keeps the fields it does not know apart.
    for fields in (getattr(item, "__dict__", None), getattr(item, "__pydantic_extra__", None)):
        if isinstance(fields, dict):
            if "logprobs" in fields:
                fields["logprobs"] = None
            found += fields.values()
    return found

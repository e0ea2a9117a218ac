"""The processor's time of each callback of an event loop: what one takes, everybody else waits for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from core_speed import CoreSpeed

MOST_S = 0.05
"""Seconds of its thread that a callback may take: `make loop-times` holds it, tests allow for a slow core."""
_TOLD_S = 0.01
"""From here on a callback is named."""


@dataclass
class LoopTime:
    """What the callbacks of loops took, in seconds that their thread computed: other threads do not count."""

    told: list[tuple[float, str]] = field(default_factory=list)
    callbacks: int = 0
    speed: CoreSpeed = field(default_factory=CoreSpeed)

    def longest(self) -> list[tuple[float, str]]:
        """Returns those that took longest, the longest first."""
        return sorted(self.told, reverse=True)[:8]

    def too_long(self) -> list[tuple[float, str]]:
        """Returns those above what a test allows; to work through a large value takes a second and more."""
        most = self.speed.allowed(MOST_S)
        return [one for one in self.longest() if one[0] > most]


@contextlib.contextmanager
def watched_callbacks(thread: threading.Thread | None = None) -> Iterator[LoopTime]:
    """Measures every callback of asyncio's loops in this process, until the block ends.

    thread: whose callbacks count; None: the calling one's. Garbage is collected as rarely as the server does.
    """
    found, run = LoopTime(), asyncio.Handle._run
    counted = (thread or threading.current_thread()).ident
    thresholds = gc.get_threshold()

    def timed(handle: asyncio.Handle) -> None:
        if threading.get_ident() != counted:
            return run(handle)
        callback, begun = handle._callback, time.thread_time()  # type: ignore[attr-defined]
        try:
            return run(handle)
        finally:
            spent = time.thread_time() - begun
            found.callbacks += 1
            if spent > _TOLD_S:
                found.told.append((round(spent, 4), _named(callback)))

    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _named(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        return f"task {getattr(coroutine, '__qualname__', coroutine)}"
    return f"{getattr(callback, '__qualname__', callback)} of {type(owner).__name__}"

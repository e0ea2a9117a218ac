"""An event loop whose clock goes to the next timer at once: a pipeline of minutes runs in a moment, and the
same in each run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest


class VirtualSelector(selectors.DefaultSelector):
    """Waits for no timer, but moves the clock to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0 if timeout is not None else None)
        if not found and timeout:
            self.now += timeout
        return found


def run_virtually(monkeypatch: pytest.MonkeyPatch, work: Coroutine[Any, Any, Any]) -> float:
    """Runs until the work is done; returns the seconds that it took on the virtual clock."""
    selector = VirtualSelector()
    loop = asyncio.SelectorEventLoop(selector)
    monkeypatch.setattr(loop, "time", lambda: selector.now)
    for module in ("trainer", "rollout_workers", "status", "training_steps"):
        clock = SimpleNamespace(monotonic=lambda: selector.now, time=lambda: selector.now)
        monkeypatch.setattr(f"art_extensions.pipeline.{module}.time", clock)
    monkeypatch.setattr(asyncio, "to_thread", call_at_once)
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()
    return selector.now


async def call_at_once(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)

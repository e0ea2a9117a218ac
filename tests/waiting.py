"""Waiting for what another task, thread or process does: for the event itself, never for a while.

The deadline is there to end a test that has failed; a machine that stalls for seconds must not reach it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

import psutil

DEADLINE_S = 240.0


async def until(condition: Callable[[], object], *, timeout: float = DEADLINE_S) -> None:
    """Return once the condition, a function or a coroutine function, holds. Other tasks run meanwhile.

    TimeoutError after `timeout` seconds.
    """
    end = time.monotonic() + timeout
    while not (await held if inspect.isawaitable(held := condition()) else held):
        if time.monotonic() > end:
            raise TimeoutError(f"it did not happen within {timeout} s")
        await asyncio.sleep(0.005)


def eventually(condition: Callable[[], object], *, timeout: float = DEADLINE_S) -> None:
    """`until` for a test without an event loop, or for another process."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"it did not happen within {timeout} s")
        time.sleep(0.02)


async def turns(count: int = 50) -> None:
    """Let every task that can run do so: what has not happened then waits for something."""
    for _ in range(count):
        await asyncio.sleep(0)


def gone(process: psutil.Process | int) -> bool:
    """Whether it ended (a zombie has ended)."""
    try:
        one = psutil.Process(process) if isinstance(process, int) else process
        return not one.is_running() or one.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

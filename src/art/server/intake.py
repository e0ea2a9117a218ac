"""Requests begin a few at a time, so that between them the event loop looks after everything else.

A thousand requests that arrive together would otherwise all be read and rendered in one turn of the loop:
half a second in which no reply leaves and `/health` is silent. A request that comes alone waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

BEGUN_TOGETHER = 16
"""About 5 ms of work."""


class Intake:
    """The door of the endpoint. One event loop owns it."""

    def __init__(self, together: int = BEGUN_TOGETHER) -> None:
        self._together = together
        self._begun = 0
        """In this turn of the loop."""
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self) -> bool:
        """Whether somebody may begin at once; if not, `wait`."""
        if self._begun == 0:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._next_turn, loop)
        if self._waiting or self._begun >= self._together:
            return False
        self._begun += 1
        return True

    def wait(self, begin: Callable[[], None]) -> None:
        """`begin` is called in a later turn; first come, first served."""
        self._waiting.append(begin)

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = min(self._together, len(self._waiting))
        if self._begun:
            loop.call_soon(self._next_turn, loop)
        for _ in range(self._begun):
            self._waiting.popleft()()

"""Requests begin a few at a time, so that between them the event loop looks after everything else.

A thousand requests that arrive together would otherwise all be read and rendered in one turn of the loop:
half a second in which no reply leaves and `/health` is silent. A request that comes alone waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque

BEGUN_TOGETHER = 24
"""About 5 ms of work."""


class Intake:
    """The door of the endpoint. One event loop owns it."""

    def __init__(self, together: int = BEGUN_TOGETHER) -> None:
        self._together = together
        self._begun = 0
        """In this turn of the loop."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Return when the request may begin; first come, first served."""
        loop = asyncio.get_running_loop()
        if self._begun == 0:
            loop.call_soon(self._next_turn, loop)
        if self._begun < self._together and not self._waiting:
            self._begun += 1
            return
        self._begun = max(self._begun, 1)
        mine = loop.create_future()
        self._waiting.append(mine)
        # Bounded by the requests before it: each turn of the loop begins some.
        await mine

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = 0
        while self._waiting and self._begun < self._together:
            mine = self._waiting.popleft()
            if not mine.done():  # its client may have gone
                mine.set_result(None)
                self._begun += 1
        if self._begun:
            loop.call_soon(self._next_turn, loop)

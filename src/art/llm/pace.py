"""How many questions are under way at once: as many as the endpoint likes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from art.errors import ConfigurationError, LlmBusyError, LlmTimeoutError

LONGEST_PAUSE_S = 120.0
"""However long `Retry-After` says."""


@dataclass
class Slot:
    """Permission for one attempt."""

    began: float


class Pace:
    """Additive increase, multiplicative decrease (as TCP does): one more for each round of answers, half for
    each round with a 429 or a time-out. After `Retry-After` nothing begins until its time has come.

    Channels of one event loop may share it: they then share one endpoint's limit.
    """

    def __init__(self, *, start: int = 8, limit: int = 64) -> None:
        """start: questions at once in the beginning; limit: at most. Raises ConfigurationError."""
        if not 1 <= start <= limit:
            raise ConfigurationError(f"Pace(start={start!r}, limit={limit!r}): 1 <= start <= limit")
        self.window = float(start)
        self.limit = limit
        self.running = 0
        self._changed = 0.0
        self._resumes = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self, patience: float = LONGEST_PAUSE_S) -> AsyncIterator[Slot]:
        """Wait for a place. What the block raises, or that it raises nothing, sets the pace.

        patience: the longest pause, in seconds, that is waited for. Raises LlmBusyError for a longer one.
        """
        await self._enter(patience)
        slot = Slot(began=time.monotonic())
        try:
            yield slot
        except LlmBusyError as error:
            self._slower(slot)
            self._pause(error.retry_after)
            raise
        except LlmTimeoutError:
            self._slower(slot)
            raise
        else:
            self.window = min(self.limit, self.window + 1 / self.window)
        finally:
            self.running -= 1
            self._wake()

    async def _enter(self, patience: float = LONGEST_PAUSE_S) -> None:
        try:
            while (pause := self._resumes - time.monotonic()) > 0 or self.running >= int(self.window):
                if pause > patience:
                    raise LlmBusyError(
                        f"the endpoint asked for a pause; {pause:.0f} s of it are left", retry_after=pause
                    )
                await (asyncio.sleep(pause) if pause > 0 else self._turn())
        except (asyncio.CancelledError, LlmBusyError):
            self._wake()  # who was woken, and then goes without a slot, lets the next one in
            raise
        self.running += 1

    async def _turn(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _slower(self, slot: Slot) -> None:
        # Of many that began before the last decrease, each would halve the window again.
        if slot.began >= self._changed:
            self.window = max(1.0, self.window / 2)
            self._changed = time.monotonic()

    def _pause(self, seconds: float | None) -> None:
        if seconds is not None:
            self._resumes = max(self._resumes, time.monotonic() + min(seconds, LONGEST_PAUSE_S))

    def _wake(self) -> None:
        free = int(self.window) - self.running
        while self._waiting and free > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1

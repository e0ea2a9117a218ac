"""How many requests use each adapter, so that one is unloaded only when its last request ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType

from art.errors import DeadlineError


class Lease:
    """Counts one request of an adapter while it is entered. Neither entering nor leaving ever waits."""

    __slots__ = ("_adapter", "_leases")

    def __init__(self, leases: Leases, adapter: str | None) -> None:
        self._leases = leases
        self._adapter = adapter

    async def __aenter__(self) -> None:
        if self._adapter is not None:
            self._leases.enter(self._adapter)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._adapter is not None:
            self._leases.leave(self._adapter)


class Leases:
    """Requests in flight, by adapter."""

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()
        self._idle: dict[str, asyncio.Event] = {}

    def count(self, adapter: str) -> int:
        return self._in_flight[adapter]

    def enter(self, adapter: str) -> None:
        self._in_flight[adapter] += 1

    def leave(self, adapter: str) -> None:
        self._in_flight[adapter] -= 1
        if not self._in_flight[adapter]:
            del self._in_flight[adapter]
            idle = self._idle.pop(adapter, None)
            if idle is not None:
                idle.set()

    async def drained(self, adapter: str, *, timeout: float) -> None:
        """Return once no request uses the adapter. `timeout` in seconds. Raises: DeadlineError."""
        if not self._in_flight[adapter]:
            return
        idle = self._idle.setdefault(adapter, asyncio.Event())
        try:
            await asyncio.wait_for(idle.wait(), timeout)
        except TimeoutError as error:
            raise DeadlineError(
                f"adapter {adapter!r} still has {self._in_flight[adapter]} requests after {timeout:g} s"
            ) from error

"""A turn of the trainer that several calls share: they are of different models and do not disturb each other,
and those that come to it at the same time can be computed together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from art.errors import ARTError


class SharedTurn:
    """The calls that come while a turn is waited for take part in it; later ones wait for the next. So no
    call waits longer than with turns of their own, and those that want the trainer alone are not passed by.
    """

    def __init__(self, turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._turn = turn
        self._next: _Party | None = None

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """The trainer is this call's, and that of others. Raises what `turn` raises."""
        if self._next is None:
            self._next = _Party()
            self._next.task = asyncio.create_task(self._hold(self._next))
        party = self._next
        party.members += 1
        party.over.clear()  # whoever asked before may have given up
        try:
            await asyncio.shield(party.begun)
            yield
        finally:
            party.members -= 1
            if not party.members:
                party.over.set()

    async def _hold(self, party: _Party) -> None:
        try:
            async with self._turn():
                self._next = None
                party.begun.set_result(None)
                await party.over.wait()
        except asyncio.CancelledError:
            party.begun.cancel()
            raise
        except ARTError as error:
            if party.begun.done():
                raise
            self._next = None
            party.begun.set_exception(error)


class _Party:
    """The calls of one turn."""

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self.members = 0

"""What is in use, and by how many: whoever would take a thing away leaves it, or waits for its last user."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class InUse(Generic[K]):
    """Counts the users of each thing. None as a thing is always there, and nobody counts its users.

    Worked example: with `using("player@3")` entered twice, `count("player@3")` is 2, `"player@3" in in_use`,
    and `wait_until_unused("player@3", 60)` returns when both blocks have ended. One event loop, or one thread
    where nobody waits, owns it. Neither entering nor leaving ever waits.
    """

    def __init__(self) -> None:
        self._users: Counter[K] = Counter()
        self._last_left: dict[K, asyncio.Event] = {}

    def __contains__(self, thing: K) -> bool:
        return thing in self._users

    def __iter__(self) -> Iterator[K]:
        """The things in use."""
        return iter(self._users)

    def count(self, thing: K) -> int:
        """Returns how many use it now."""
        return self._users[thing]

    def using(self, thing: K | None) -> Use[K]:
        """`with in_use.using(thing)`: it is in use until the block ends."""
        return Use(self, thing)

    def enter(self, thing: K | None) -> None:
        """One more uses it, until `leave`."""
        if thing is not None:
            self._users[thing] += 1

    def leave(self, thing: K | None) -> None:
        """One of its users has ended."""
        if thing is None:
            return
        self._users[thing] -= 1
        if not self._users[thing]:
            del self._users[thing]
            if (last_left := self._last_left.pop(thing, None)) is not None:
                last_left.set()

    async def wait_until_unused(self, thing: K, seconds: float) -> None:
        """Return once nobody uses it. Raises TimeoutError after `seconds`."""
        if thing in self._users:
            async with asyncio.timeout(seconds):
                await self._last_left.setdefault(thing, asyncio.Event()).wait()


class Use(Generic[K]):
    """One user, as long as the block runs."""

    __slots__ = ("_in_use", "_thing")

    def __init__(self, in_use: InUse[K], thing: K | None) -> None:
        self._in_use, self._thing = in_use, thing

    def __enter__(self) -> None:
        self._in_use.enter(self._thing)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_use.leave(self._thing)

"""What belongs to one event loop: connections cannot move between loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """A value for each event loop, made when that loop first asks. Several threads may ask.

    A notebook or a program that calls `asyncio.run` again and again has many loops: what belongs to a closed
    one is let go when the next loop comes.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        # Not weak: connections refer to their loop, so a weak key would live as long as its value.
        self._values: dict[asyncio.AbstractEventLoop, T] = {}
        self._lock = threading.Lock()

    def get(self) -> T:
        """The value of the running loop."""
        loop = asyncio.get_running_loop()
        value = self._values.get(loop)
        if value is None:
            value = self._make()
            with self._lock:
                for closed in [other for other in self._values if other.is_closed()]:
                    del self._values[closed]
                self._values[loop] = value
        return value

    def take(self) -> T | None:
        """The running loop's value, which is forgotten here; None if there is none."""
        with self._lock:
            return self._values.pop(asyncio.get_running_loop(), None)

    def alive(self) -> Iterator[T]:
        """The values of all loops that are not closed."""
        with self._lock:
            values = list(self._values.items())
        return (value for loop, value in values if not loop.is_closed())

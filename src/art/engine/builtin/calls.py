"""What event loops ask of the step thread, and how its answers come back to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from art.engine.builtin.compiling import Waiter
from art.engine.builtin.sequence import Sequence as Running
from art.engine.protocol import Delta
from art.engine.served import Sink
from art.errors import ARTError, DeadlineError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Call:
    """One `generate`; `sink` takes its news on `loop`."""

    loop: asyncio.AbstractEventLoop
    sink: Sink
    sequence: Running | None = None
    cancelled: bool = False
    waiter: Waiter | None = None
    """What waits for its constraint."""


@dataclass(frozen=True, slots=True)
class Order:
    """Something to do between two steps, and what to do instead when the engine has ended."""

    run: Callable[[], None]
    fail: Callable[[ARTError], None]


def send(loop: asyncio.AbstractEventLoop, items: list[tuple[Call, Delta | ARTError]]) -> None:
    """Tell each caller its news, in one turn of their loop."""

    def put() -> None:
        for call, news in items:
            if not call.cancelled:
                call.sink(news)

    if not loop.is_closed():
        loop.call_soon_threadsafe(put)


async def within(future: Future[T], seconds: float, what: str) -> T:
    """The step thread's answer. Raises: DeadlineError, and what the answer raises."""
    try:
        # Shielded: a caller who gives up must not cancel what the step thread will complete.
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), seconds)
    except TimeoutError as error:
        raise DeadlineError(f"the engine did not finish within {seconds:.0f} s: {what}") from error

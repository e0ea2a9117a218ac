"""What event loops ask of the step thread, and how its answers come back to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from art.constraints.guide import Guide
from art.engine.builtin.sequence import Sequence
from art.engine.protocol import Delta
from art.engine.served import Sink
from art.errors import ARTError, DeadlineError, WorkerError

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Call:
    """One `generate`; `sink` takes its news on `loop`."""

    loop: asyncio.AbstractEventLoop
    sink: Sink
    sequence: Sequence | None = None
    cancelled: bool = False


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


def why_not(opening: Future[Guide]) -> ARTError | None:
    """Why a constraint was not compiled; None: it was."""
    if opening.cancelled():
        return WorkerError("the engine is closed")
    error = opening.exception()
    if error is None or isinstance(error, ARTError):
        return error
    logger.error("a constraint's compiler failed", exc_info=error)
    return WorkerError(f"the constraint's compiler failed: {type(error).__name__}: {error}")

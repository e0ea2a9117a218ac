"""One call to many replicas: a bounded number at a time, and none that holds up the others for long.

1,000 replicas, AT_ONCE = 64     64 calls run; each that ends lets the next one begin
one takes too long               after `straggle` seconds its place goes to the next one
three quarters have answered     the others have as long again and `straggle` seconds more; then they count as
                                 stalled, and whoever owns them starts them again
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from art.errors import WorkerStalledError

AT_ONCE = 64
"""Calls that run at the same time, each over a connection of its own."""
MOST = 0.75
"""The share of answers from which on those who have not answered are late."""

T = TypeVar("T")


async def call_each(
    calls: Mapping[int, Callable[[], Awaitable[T]]], *, straggle: float | None = None
) -> dict[int, T | BaseException]:
    """Returns the answer or the error of each call, by its number.

    straggle: seconds, as above; None: every call is waited for as long as it takes.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    asked = {
        number: asyncio.create_task(_call_in_turn(call, gate, straggle)) for number, call in calls.items()
    }
    try:
        await _wait_for_answers(asked.values(), straggle)
    finally:  # also where the caller was cancelled: nothing runs on without it
        late = {number for number, task in asked.items() if not task.done()}
        for number in late:
            asked[number].cancel()
        await asyncio.gather(*asked.values(), return_exceptions=True)
    return {
        number: _late_error(number, len(calls) - len(late)) if number in late else _outcome(task)
        for number, task in asked.items()
    }


class _Place:
    """One of the `AT_ONCE` places, given back once."""

    def __init__(self, gate: asyncio.Semaphore) -> None:
        self._gate: asyncio.Semaphore | None = gate

    def free(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.release()


async def _call_in_turn(
    call: Callable[[], Awaitable[T]], gate: asyncio.Semaphore, straggle: float | None
) -> T:
    await gate.acquire()
    place = _Place(gate)
    early = None if straggle is None else asyncio.get_running_loop().call_later(straggle, place.free)
    try:
        return await call()
    finally:
        place.free()
        if early is not None:
            early.cancel()


async def _wait_for_answers(asked: Collection[asyncio.Task[T]], straggle: float | None) -> None:
    """Wait for all, or until those who are late have had their time."""
    if straggle is None or not asked:
        await asyncio.gather(*asked, return_exceptions=True)
        return
    loop, most, answered = asyncio.get_running_loop(), asyncio.Event(), 0
    begin, enough = loop.time(), math.ceil(MOST * len(asked))

    def count(task: asyncio.Task[T]) -> None:
        nonlocal answered
        answered += 1
        if answered >= enough:
            most.set()

    for task in asked:
        task.add_done_callback(count)
    await most.wait()
    await asyncio.wait(asked, timeout=loop.time() - begin + straggle)


def _outcome(task: asyncio.Task[T]) -> T | BaseException:
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()


def _late_error(number: int, answered: int) -> WorkerStalledError:
    return WorkerStalledError(
        f"replica {number} had not answered when {answered} others had, nor in as long a time again: it is "
        "started again, and gets requests once it has all adapters"
    )

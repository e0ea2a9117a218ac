"""Turns of the trainer that several calls share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from art.errors import WorkerError
from art.server.workers.shared_turn import SharedTurn


class Turns:
    """A lock whose turns are counted; those in `failing` do not begin."""

    def __init__(self, *failing: int) -> None:
        self.lock, self.taken, self.failing = asyncio.Lock(), 0, failing
        self.shared = SharedTurn(self.turn)
        self.inside: list[set[str]] = []
        self._now: set[str] = set()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        async with self.lock:
            self.taken += 1
            if self.taken in self.failing:
                raise WorkerError("it is gone")
            self._now = set()
            self.inside.append(self._now)
            yield
            self._now = set()

    async def call(self, name: str, seconds: float = 0.01) -> None:
        async with self.shared.joined():
            assert self.lock.locked()
            self._now.add(name)
            await asyncio.sleep(seconds)


async def test_those_who_wait_share_the_next_turn() -> None:
    turns = Turns()
    async with turns.lock:
        calls = [asyncio.create_task(turns.call(name)) for name in "abc"]
        await asyncio.sleep(0.01)
        assert not turns.inside
    await asyncio.gather(*calls)
    assert turns.inside == [{"a", "b", "c"}] and not turns.lock.locked()


async def test_who_comes_during_a_turn_waits_for_the_next_behind_those_who_want_it_alone() -> None:
    turns, order = Turns(), []

    async def alone() -> None:
        async with turns.lock:
            order.append(len(turns.inside))

    first = asyncio.create_task(turns.call("a", 0.05))
    await asyncio.sleep(0.01)
    waiting = [asyncio.create_task(alone())]
    await asyncio.sleep(0)
    waiting += [asyncio.create_task(turns.call(name)) for name in "bc"]
    await asyncio.gather(first, *waiting)
    assert turns.inside == [{"a"}, {"b", "c"}] and order == [1]


async def test_one_who_gives_up_leaves_the_turn_to_the_others() -> None:
    turns = Turns()
    async with turns.lock:
        gone = asyncio.create_task(turns.call("gone"))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        other = asyncio.create_task(turns.call("other"))
        await asyncio.sleep(0)
    await other
    assert turns.inside == [{"other"}]
    await turns.call("later")
    assert turns.inside == [{"other"}, {"later"}]


async def test_a_turn_that_does_not_begin_fails_all_who_share_it_and_no_other() -> None:
    turns = Turns(1)
    async with turns.lock:
        calls = [asyncio.create_task(turns.call(name)) for name in "ab"]
        await asyncio.sleep(0.01)
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in found] == [WorkerError, WorkerError]
    await turns.call("c")
    await asyncio.sleep(0)
    assert turns.inside == [{"c"}] and not turns.lock.locked()


async def test_a_call_that_fails_ends_its_part_alone() -> None:
    turns = Turns()

    async def failing() -> None:
        async with turns.shared.joined():
            raise ValueError("its own")

    async with turns.lock:
        calls = [asyncio.create_task(failing()), asyncio.create_task(turns.call("a"))]
        await asyncio.sleep(0.01)
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(found[0], ValueError) and found[1] is None
    assert turns.inside == [{"a"}] and not turns.lock.locked()

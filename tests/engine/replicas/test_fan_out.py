"""A call to many replicas: bounded at a time, each answer kept, and nobody waited for without end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from art.engine.replicas.fan_out import AT_ONCE, call_each
from art.errors import CheckpointError, WorkerStalledError
from waiting import turns


def answering(value: int, *, at: asyncio.Event | None = None) -> Callable[[], Awaitable[int]]:
    async def answer() -> int:
        if at is not None:
            await at.wait()
        return value

    return answer


async def test_so_many_run_at_a_time_and_all_answer() -> None:
    running = most = 0

    async def call() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return 7

    answers = await call_each(dict.fromkeys(range(5 * AT_ONCE), call))
    assert answers == dict.fromkeys(range(5 * AT_ONCE), 7) and most == AT_ONCE


async def test_an_error_is_the_answer_of_its_replica_alone() -> None:
    async def refuse() -> int:
        raise CheckpointError("unfit")

    answers = await call_each({0: answering(1), 1: refuse})
    assert answers[0] == 1 and isinstance(answers[1], CheckpointError)


async def test_the_one_that_is_far_slower_than_most_counts_as_stalled() -> None:
    never = asyncio.Event()
    calls = {number: answering(number) for number in range(7)} | {7: answering(7, at=never)}
    answers = await call_each(calls, straggle=0.05)
    assert {number: answers[number] for number in range(7)} == {number: number for number in range(7)}
    assert isinstance(answers[7], WorkerStalledError)
    with pytest.raises(WorkerStalledError, match="replica 7 had not answered when 7 others had"):
        raise answers[7]


async def test_few_replicas_wait_for_each_other() -> None:
    """With two there is no "most": neither is taken for stalled because the other was quick."""
    slow = asyncio.Event()
    asked = asyncio.create_task(call_each({0: answering(0), 1: answering(1, at=slow)}, straggle=0.0))
    await turns()
    assert not asked.done()
    slow.set()
    assert await asked == {0: 0, 1: 1}


async def test_those_that_hang_leave_their_places_to_the_others() -> None:
    never = asyncio.Event()
    hanging = {number: answering(number, at=never) for number in range(AT_ONCE)}
    prompt = {number: answering(number) for number in range(AT_ONCE, 8 * AT_ONCE)}
    answers = await call_each({**hanging, **prompt}, straggle=0.05)
    assert all(answers[number] == number for number in prompt)
    assert all(isinstance(answers[number], WorkerStalledError) for number in hanging)


async def test_nothing_runs_on_for_a_caller_who_has_gone() -> None:
    ended = 0

    async def call() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    asked = asyncio.create_task(call_each(dict.fromkeys(range(3), call)))
    await turns()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert ended == 3

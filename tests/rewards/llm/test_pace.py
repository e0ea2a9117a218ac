"""More questions at once while all is well, fewer where the endpoint asks for it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from art.errors import LlmBusyError, LlmTimeoutError, LlmUnavailableError
from art.rewards.llm import Channel, Pace, Request, resolve_llm
from art_extensions.testing import LlmServer
from waiting import DEADLINE_S, turns, until


async def fail(pace: Pace, error: Exception) -> None:
    with pytest.raises(type(error)):
        async with pace.slot():
            raise error


async def test_it_grows_by_one_a_round_and_halves_once_a_round() -> None:
    pace = Pace(start=4, limit=6)

    async def well() -> None:
        async with pace.slot():
            await asyncio.sleep(0)

    await asyncio.gather(*(well() for _ in range(4)))
    assert 4.8 < pace.window <= 5
    await asyncio.gather(*(well() for _ in range(40)))
    assert pace.window == 6
    gate = asyncio.Event()

    async def busy() -> None:
        async with pace.slot():
            await gate.wait()
            raise LlmBusyError("no")

    together = [asyncio.create_task(busy()) for _ in range(6)]
    await asyncio.sleep(0.01)
    gate.set()
    await asyncio.gather(*together, return_exceptions=True)
    assert pace.window == 3, "six that began together are one sign, not six"
    await fail(pace, LlmTimeoutError("late"))
    assert pace.window == 1.5
    await fail(pace, LlmUnavailableError("500 says nothing about how many"))
    assert pace.window == 1.5
    for _ in range(5):
        await fail(pace, LlmBusyError("no"))
    assert pace.window == 1


async def test_nothing_begins_before_the_time_that_was_told() -> None:
    pace = Pace()
    began = time.monotonic()
    await fail(pace, LlmBusyError("later", retry_after=0.3))
    async with pace.slot():
        assert time.monotonic() - began >= 0.3


async def test_never_more_than_the_window_and_all_get_their_turn() -> None:
    pace, most, at_once = Pace(start=2, limit=3), 0, 0

    async def ask() -> None:
        nonlocal most, at_once
        async with pace.slot():
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.001)
            at_once -= 1

    await asyncio.gather(*(ask() for _ in range(50)))
    assert most == 3 and pace.running == 0


async def test_who_is_cancelled_while_waiting_blocks_nobody() -> None:
    pace = Pace(start=1, limit=1)
    async with pace.slot():
        waiting = [asyncio.create_task(pace._enter()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
    waiting[1].cancel()  # it was woken, and has not noticed yet
    async with asyncio.timeout(DEADLINE_S):
        await waiting[2]
    assert pace.running == 1


@pytest.mark.slow
async def test_an_endpoint_with_little_room_is_asked_by_few_and_answers_all() -> None:
    def turned_away() -> int:
        return sum(one.trouble == "busy" for one in server.served)

    async def answer(body: Any) -> str:
        # The first 32 less the three that were let in, and one that came after them.
        await until(lambda: turned_away() >= 30)
        return "x"

    async with LlmServer(answer, capacity=3) as server:
        channel = Channel(
            resolve_llm("judge", base_url=server.base_url, api_key=server.key),
            attempts=50,
            first_wait=0.02,
            pace=Pace(start=32, limit=64),
        )

        def question(number: int) -> Request:
            message: dict[str, Any] = {"role": "user", "content": str(number)}
            return Request(messages=(message,))

        await asyncio.gather(*(channel.ask(question(number)) for number in range(60)))
    assert len(server.served) == 60 + turned_away() and channel.totals.failures == 0
    assert channel.pace.window < 16


async def test_who_waits_out_a_pause_and_is_cancelled_lets_the_next_one_in() -> None:
    pace = Pace(start=1, limit=1)

    async def ask() -> None:
        async with pace.slot():
            pass

    async def busy() -> None:
        async with pace.slot():
            await asyncio.sleep(0.02)
            raise LlmBusyError("later", retry_after=0.1)

    first, second, third = (asyncio.create_task(one) for one in (busy(), ask(), ask()))
    await asyncio.sleep(0.05)
    second.cancel()
    await asyncio.wait_for(third, DEADLINE_S)
    await asyncio.gather(first, second, return_exceptions=True)
    assert pace.running == 0


async def test_a_long_pause_ends_all_that_wait_for_a_place() -> None:
    pace = Pace(start=1, limit=1)

    async def ask() -> None:
        async with pace.slot(patience=1.0):
            await turns()  # the others wait for this place
            raise LlmBusyError("later", retry_after=100.0)

    asked = await asyncio.wait_for(asyncio.gather(*(ask() for _ in range(5)), return_exceptions=True), 60)
    assert [type(error) for error in asked] == [LlmBusyError] * 5 and pace.running == 0

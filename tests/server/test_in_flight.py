"""What one tenant has in flight is bounded, and what arrives together begins a few at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from tenants_world import World, run_world
from waiting import until

from art.errors import OverloadedError
from art.rendering.library import LibraryRenderer
from art.server.intake import Intake
from art.server.settings import LimitSettings
from art.server.tenants.in_flight import InFlight


async def ask(world: World, who: str, **fields: Any) -> httpx.Response:
    body = {"model": "player", "messages": [{"role": "user", "content": "hi"}], **fields}
    return await world.clients[who].post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tenants_flood_is_refused_and_the_others_are_answered(
    tmp_path: Path, renderer: LibraryRenderer, stream: bool
) -> None:
    async with run_world(tmp_path, renderer, limits=LimitSettings(tenant_in_flight=3)) as world:
        world.engine.gate = asyncio.Event()
        held = [asyncio.create_task(ask(world, "alice", stream=stream)) for _ in range(3)]
        await until(lambda: len(world.engine.requests) == 3)
        refused = await ask(world, "alice", stream=stream)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "too_many_in_flight"
        assert "you have 3 requests in flight, the limit is 3" in refused.json()["error"]["message"]
        others = [asyncio.create_task(ask(world, who)) for who in ("bob", *["operator"] * 5)]
        await until(lambda: len(world.engine.requests) == 9)
        world.engine.gate.set()
        replies = await asyncio.gather(*held, *others)
        assert {reply.status_code for reply in replies} == {200}
        assert (await ask(world, "alice")).status_code == 200, "what has ended makes room"


async def test_completions_count_one_by_one(tmp_path: Path, renderer: LibraryRenderer) -> None:
    async with run_world(tmp_path, renderer, limits=LimitSettings(tenant_in_flight=8)) as world:
        refused = await ask(world, "alice", n=9)
        assert refused.status_code == 429 and "completions in flight" in refused.json()["error"]["message"]
        assert len((await ask(world, "alice", n=8)).json()["choices"]) == 8
        assert len((await ask(world, "operator", n=9)).json()["choices"]) == 9


def test_a_refusal_counts_nothing() -> None:
    flight = InFlight(1, "requests")
    with flight.holding("alice"):
        for _ in range(3):
            with pytest.raises(OverloadedError, match="the limit is 1"), flight.holding("alice"):
                raise AssertionError("it was let in")
        with flight.holding("bob"), flight.holding(None), flight.holding(None):
            assert True
    with flight.holding("alice"):
        assert True


async def test_a_burst_begins_a_few_in_each_turn_of_the_loop_in_its_order() -> None:
    intake, begun, turns = Intake(together=4), [], [0]

    async def request(number: int) -> None:
        await intake.turn()
        begun.append((turns[0], number))

    async def count_turns() -> None:
        while len(begun) < 103:
            turns[0] += 1
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(request(number)) for number in range(103)]
    tasks[50].cancel()  # its client went away
    tasks.append(asyncio.create_task(request(103)))
    async with asyncio.timeout(10):
        await asyncio.gather(count_turns(), *tasks, return_exceptions=True)
    assert [number for _, number in begun] == [number for number in range(104) if number != 50]
    in_turn = [sum(1 for turn, _ in begun if turn == one) for one in range(turns[0] + 1)]
    assert max(in_turn) <= 8 and len([one for one in in_turn if one]) >= 20


async def test_a_request_that_comes_alone_waits_for_no_turn() -> None:
    intake = Intake()
    coroutine = intake.turn()
    with pytest.raises(StopIteration):
        coroutine.send(None)

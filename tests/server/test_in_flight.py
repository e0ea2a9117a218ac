"""What one tenant has in flight is bounded, and what arrives together begins a few at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from live import KEY, Live
from tenants_world import World, run_world

from art.errors import OverloadedError
from art.rendering.library import LibraryRenderer
from art.server import connections, tenants
from art.server.connections import Intake
from art.server.settings import LimitSettings
from art.server.tenants import LOOK_SECONDS, RefusalPace, TenantConcurrency
from waiting import until


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


async def test_refusals_of_a_flood_wait_and_nothing_else_does(
    tmp_path: Path, renderer: LibraryRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    wait_of = RefusalPace.wait_of
    monkeypatch.setattr(tenants, "REFUSED_A_SECOND", 1)
    monkeypatch.setattr(tenants, "HELD_BACK_S", 0.1)
    monkeypatch.setattr(RefusalPace, "wait_of", lambda *given: waited.append(wait_of(*given)) or waited[-1])
    async with run_world(tmp_path, renderer, limits=LimitSettings(tenant_in_flight=1)) as world:
        world.engine.gate = asyncio.Event()
        held = asyncio.create_task(ask(world, "alice"))
        await until(lambda: world.engine.requests)
        refused = await asyncio.gather(*(ask(world, "alice") for _ in range(20)))
        refused += [await ask(world, "bob", n=9) for _ in range(2)]
        assert {one.status_code for one in refused} == {429}
        world.engine.gate.set()
        assert (await held).status_code == 200
        wrong = await ask(world, "alice", max_tokens=-1)
        assert wrong.status_code == 400
    assert len(waited) == 22 and sorted(waited)[12:] == pytest.approx([0.1] * 10)


async def test_a_key_that_is_revoked_while_a_refusal_waits_is_told_nothing_else(
    tmp_path: Path, renderer: LibraryRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[str] = []
    monkeypatch.setattr(RefusalPace, "wait_of", lambda _, tenant: waits.append(tenant) or 2 * LOOK_SECONDS)
    async with run_world(tmp_path, renderer, limits=LimitSettings(tenant_in_flight=8)) as world:
        refused = asyncio.create_task(ask(world, "alice", n=9))
        await until(lambda: waits)
        world.tenants.revoke("alice")
        answer = await refused
        assert answer.status_code == 401 and "in flight" not in answer.text


def test_a_tenant_that_paused_is_refused_at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(tenants.time, "monotonic", lambda: now)
    pace = RefusalPace()
    waits = [pace.wait_of("alice") for _ in range(tenants.REFUSED_A_SECOND)]
    assert max(waits) < 0.01
    waits = [pace.wait_of("alice") for _ in range(2_000)]
    assert waits == sorted(waits) and waits[-1] == tenants.HELD_BACK_S
    assert pace.wait_of("bob") == 0.0
    now += 1.0 + tenants.HELD_BACK_S
    assert pace.wait_of("alice") == 0.0


async def test_completions_count_one_by_one(tmp_path: Path, renderer: LibraryRenderer) -> None:
    async with run_world(tmp_path, renderer, limits=LimitSettings(tenant_in_flight=8)) as world:
        refused = await ask(world, "alice", n=9)
        assert refused.status_code == 429 and "completions in flight" in refused.json()["error"]["message"]
        assert len((await ask(world, "alice", n=8)).json()["choices"]) == 8
        assert len((await ask(world, "operator", n=9)).json()["choices"]) == 9


async def test_tokenizing_is_a_request_in_flight_as_well(tmp_path: Path, renderer: LibraryRenderer) -> None:
    async with run_world(tmp_path, renderer, limits=LimitSettings(tenant_in_flight=1)) as world:
        world.engine.gate = asyncio.Event()
        held = asyncio.create_task(ask(world, "alice"))
        await until(lambda: world.engine.requests)
        body = {"model": "player", "prompt": "hi"}
        refused = await world.clients["alice"].post("/tokenize", json=body)
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "too_many_in_flight"
        assert (await world.clients["bob"].post("/tokenize", json=body)).status_code == 200
        world.engine.gate.set()
        assert (await held).status_code == 200
        assert (await world.clients["alice"].post("/tokenize", json=body)).status_code == 200


def test_a_refusal_counts_nothing() -> None:
    flight = TenantConcurrency(1, "requests")
    with flight.count_request("alice"):
        for _ in range(3):
            with pytest.raises(OverloadedError, match="the limit is 1"), flight.count_request("alice"):
                raise AssertionError("it was let in")
        with flight.count_request("bob"), flight.count_request(None), flight.count_request(None):
            assert True
    with flight.count_request("alice"):
        assert True


async def test_a_burst_begins_a_few_in_each_turn_of_the_loop_in_its_order() -> None:
    intake, begun, turn = Intake(together=4), [], 0

    def request(number: int) -> None:
        if intake.enter():
            begun.append((turn, number))
        else:
            intake.waiting.append(lambda: begun.append((turn, number)))

    for number in range(100):
        request(number)
    assert len(begun) == 4, "the first few wait for nothing"
    while len(begun) < 103:
        turn += 1
        await asyncio.sleep(0)
        if turn == 5:
            for number in range(100, 103):
                request(number)
    assert [number for _, number in begun] == list(range(103))
    assert turn < 40 and max(Counter(at for at, _ in begun).values()) == 4


async def test_a_request_that_comes_alone_waits_for_no_turn() -> None:
    intake = Intake()
    for _ in range(100):
        assert intake.enter()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_memory_is_given_back_once_many_connections_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(connections, "trim_memory_in_thread", lambda: given_back.append(1))
    intake = Intake()
    for _ in range(3 * connections.CLOSED - 1):
        intake.leave()
    await until(lambda: len(given_back) == 2)


@pytest.mark.slow
async def test_health_is_told_before_a_burst_has_begun(live: Live) -> None:
    host, _, port = live.url.removeprefix("http://").partition(":")
    body = orjson.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})
    chat = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {KEY}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode() + body
    live.engine.gate = asyncio.Event()
    pairs = [await asyncio.open_connection(host, port) for _ in range(200)]
    reader, writer = await asyncio.open_connection(host, port)
    for _, one in pairs:
        one.write(chat)
    writer.write(f"GET /health HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
    assert (await reader.readline()).endswith(b"200 OK\r\n")
    begun = len(live.engine.requests)
    live.engine.gate.set()
    replies = await asyncio.gather(*(one.read() for one, _ in pairs))
    assert begun < 200 and len(live.engine.requests) == 200
    assert all(reply.startswith(b"HTTP/1.1 200 OK") for reply in replies)
    for _, one in [*pairs, (reader, writer)]:
        one.close()

"""What the bodies of requests take of the server's memory is bounded, for each tenant and for all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from live import listening
from tenants_world import OPERATOR, World, run_world

from art.errors import OverloadedError, RequestError
from art.rendering.library import LibraryRenderer
from art.server.http import ARRIVAL_GRACE, SLOWEST_ARRIVAL, BodyMemory
from art.server.settings import LimitSettings
from art.wire.models import RegisterRequest
from waiting import DEADLINE_S, until

LIMITS = LimitSettings(tenant_body_bytes=200_000, body_bytes=400_000, head_seconds=60)


@pytest.fixture
async def world(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[World]:
    async with run_world(tmp_path, renderer, limits=LIMITS) as running:
        yield running


def test_bytes_count_until_a_request_has_ended() -> None:
    memory = BodyMemory(100, 250)
    with memory.use("alice") as first, memory.use("alice") as second, memory.use("bob") as bob:
        first.add(60)
        with pytest.raises(OverloadedError, match=r"you have 60 bytes of request bodies .* limit is 100"):
            second.expect(50)
        second.add(40)
        with pytest.raises(OverloadedError, match="you have 100 bytes") as refused:
            second.add(1)
        assert (refused.value.status, refused.value.code) == (429, "too_many_body_bytes")
        bob.add(100)
        with memory.use(None) as operator, pytest.raises(OverloadedError, match="all requests together"):
            operator.add(51)
        assert memory.bytes_of == {"alice": 100, "bob": 100}
    assert not memory.bytes_of
    with memory.use("alice") as alone:
        alone.add(1000)
        assert memory.bytes_of == {"alice": 1000}, "how large one body may be is its route's matter"


async def begin(
    address: str, key: str, length: str, part: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with a request whose body does not end."""
    host, port = address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n{length}\r\n\r\n"
    writer.write(head.encode() + part)
    return reader, writer


async def refusal(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(DEADLINE_S):
        return await reader.readuntil(b"}}")


@pytest.mark.parametrize("length", ["content-length: 150000", "transfer-encoding: chunked"])
async def test_bodies_that_do_not_end_take_no_more_than_their_tenants_share(
    world: World, length: str
) -> None:
    key = world.clients["alice"].headers["authorization"].removeprefix("Bearer ")
    part = b" " * 100_000
    if "chunked" in length:
        part = b"%x\r\n%b\r\n" % (len(part), part)
    async with listening(world.app, LIMITS) as address, contextlib.AsyncExitStack() as stack:
        for number in range(6):
            reader, writer = await begin(address, key, length, part)
            stack.callback(writer.close)
            if number == 0:
                await until(lambda: world.app.bodies.bytes_of["alice"] == 100_000)
            elif "chunked" not in length:
                assert b"too_many_body_bytes" in await refusal(reader)
        if "chunked" in length:
            await until(lambda: world.app.bodies.bytes_of["alice"] > 150_000)
        assert world.app.bodies.bytes_of["alice"] <= LIMITS.tenant_body_bytes
        _, waiting = await begin(address, OPERATOR, "content-length: 190000", b" " * 150_000)
        stack.callback(waiting.close)
        await until(lambda: world.app.bodies.bytes_of[None] == 150_000)
        reply = await world.clients["bob"].post("/tokenize", json={"model": "player", "prompt": "hi"})
        assert reply.status_code == 200, "others are answered"
    await until(lambda: not world.app.bodies.bytes_of)


async def test_a_body_counts_until_it_is_answered(world: World) -> None:
    body = orjson.dumps({"model": "player", "messages": [{"role": "user", "content": "hi"}]}).ljust(150_000)
    world.engine.gate = asyncio.Event()
    alice = world.clients["alice"]
    answered = asyncio.create_task(alice.post("/v1/chat/completions", content=body))
    await until(lambda: world.engine.requests)
    refused = await alice.post("/v1/chat/completions", content=body)
    assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
    world.engine.gate.set()
    assert (await answered).status_code == 200
    assert (await alice.post("/v1/chat/completions", content=body)).status_code == 200
    assert not world.app.bodies.bytes_of


def test_the_largest_body_has_minutes_not_a_quarter_of_an_hour() -> None:
    assert ARRIVAL_GRACE + LimitSettings().max_body_bytes / SLOWEST_ARRIVAL < 180


async def test_a_tenant_has_a_limited_number_of_models(world: World) -> None:
    world.control.settings = world.control.settings.model_copy(update={"tenant_models": 1})
    asked = {"project": "games", "name": "another", "base_model": "art/nano"}
    refused = await world.clients["alice"].post("/art/models", json=asked)
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "too_many_models"
    assert "you have 1 models, the limit is 1: delete one" in refused.json()["error"]["message"]
    known, more = (RegisterRequest(**{**asked, "name": name}) for name in ("player", "another"))
    world.control._check_quota(known.model_copy(update={"project": "alice~games"}))
    world.control._check_quota(more)  # the operator's
    with pytest.raises(RequestError, match="limit is 1"):
        world.control._check_quota(more.model_copy(update={"project": "alice~games"}))

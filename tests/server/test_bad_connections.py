"""Uploads of gigabytes, bodies and heads that never come, heads without an end: refused, memory bounded."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from dialect_bodies import DIALECTS, refusal
from live import KEY, listening, run_gateway
from scripted_engine import ScriptedEngine
from tenants_world import OPERATOR, World, run_world

from art.rendering.library import LibraryRenderer
from art.server import http
from art.server.settings import LimitSettings
from waiting import DEADLINE_S, until

LIMITS = LimitSettings(max_body_bytes=64 * 1024, max_head_bytes=4096, head_seconds=0.5, keep_alive=1)
PATIENT = LIMITS.model_copy(update={"head_seconds": 60.0, "keep_alive": 60})
"""A machine that stalls for a second is not what the tests of sizes are about."""
CONTROL = "/art/models/games/player/train"


@pytest.fixture
async def patient(tmp_path: Path, engine: ScriptedEngine, renderer: LibraryRenderer) -> AsyncIterator[str]:
    """Of a gateway with small limits of size, and large ones of time."""
    async with run_gateway(tmp_path / "ledger.sqlite", engine, renderer, limits=PATIENT) as running:
        yield running.url


@pytest.fixture
async def address(tmp_path: Path, engine: ScriptedEngine, renderer: LibraryRenderer) -> AsyncIterator[str]:
    """Of a gateway with small limits."""
    async with run_gateway(tmp_path / "ledger.sqlite", engine, renderer, limits=LIMITS) as running:
        yield running.url


@pytest.fixture
async def world(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[World]:
    async with run_world(tmp_path, renderer) as running:
        yield running


async def spoken(address: str, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """What the server answers to these bytes alone, until it hangs up: status, headers, body."""
    host, port = address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        await writer.drain()
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read()
    finally:
        writer.close()
    if not answer:
        return 0, {}, b""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def head(path: str, *lines: str, key: str = KEY) -> bytes:
    fixed = [f"POST {path} HTTP/1.1", "host: art", f"authorization: Bearer {key}"]
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


def code_of(body: bytes, path: str = "") -> str:
    reply = httpx.Response(200, content=body, headers={"content-type": "application/json"})
    return str(refusal(reply, path)["code"])


def memory() -> int:
    """Bytes that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.parametrize("path", DIALECTS)
async def test_gigabytes_that_are_announced_are_not_waited_for(address: str, path: str) -> None:
    sent = head(path, f"content-length: {5 * 2**30}") + b"{" * 1000
    status, _, body = await spoken(address, sent)
    assert (status, code_of(body, path)) == (413, "body_too_large")


async def test_gigabytes_that_are_announced_to_a_control_route(world: World) -> None:
    async with listening(world.app, LIMITS) as address:
        sent = head(CONTROL, f"content-length: {5 * 2**30}", key=OPERATOR)
        status, _, body = await spoken(address, sent)
        assert (status, code_of(body)) == (413, "body_too_large")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", CONTROL])
async def test_gigabytes_that_are_not_announced_take_no_memory(world: World, path: str) -> None:
    """All of them are taken, as the client reads its refusal only then."""
    piece = b" " * 2**20

    held = [memory()]

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(256):
            yield piece
            held.append(memory())

    async with (
        listening(world.app, PATIENT) as address,
        httpx.AsyncClient(headers={"authorization": f"Bearer {OPERATOR}"}, timeout=240) as client,
    ):
        reply = await client.post(address + path, content=pieces())
    assert (reply.status_code, refusal(reply, path)["code"]) == (413, "body_too_large")
    assert max(held) - held[0] < 160 * 2**20


async def test_an_upload_that_was_refused_does_not_go_on_for_ever(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head("/v1/chat/completions", f"content-length: {5 * 2**30}"))
    assert b"body_too_large" in await reader.readuntil(b"}}")
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(DEADLINE_S):
            while True:
                writer.write(b" " * 1000)
                await writer.drain()
                await asyncio.sleep(0.05)
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("length", ["content-length: 100", "transfer-encoding: chunked"])
@pytest.mark.parametrize("path", DIALECTS)
async def test_a_body_that_never_comes(
    address: str, path: str, length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ARRIVAL_GRACE", 0.2)
    status, headers, body = await spoken(address, head(path, length))
    assert (status, code_of(body, path)) == (408, "body_timeout")
    assert headers["connection"] == "close"


async def test_a_control_body_that_never_comes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ARRIVAL_GRACE", 0.2)
    async with listening(world.app, LIMITS) as address:
        sent = head(CONTROL, "content-length: 100", key=OPERATOR) + b'{"job_id"'
        status, _, body = await spoken(address, sent)
        assert (status, code_of(body)) == (408, "body_timeout")


async def test_a_client_that_goes_before_its_body_came(world: World) -> None:
    """Nobody is answered, and nothing is logged as a failure of the server."""
    async with listening(world.app, LIMITS) as address:
        host, port = address.removeprefix("http://").split(":")
        for path in ("/v1/chat/completions", CONTROL):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(head(path, "content-length: 100", key=OPERATOR) + b"{")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            assert (await client.get(address + "/health")).status_code == 200


@pytest.fixture
def no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


pytestmark = pytest.mark.usefixtures("no_failures")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"x" * 10_000,
        b"GET / HTTP/1.1\r\nhost: " + b"x" * 10_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2_000,
    ],
)
async def test_heads_without_an_end(address: str, sent: bytes) -> None:
    status, _, body = await spoken(address, sent)
    assert (status, code_of(body)) == (431, "head_too_large")


async def test_heads_that_never_come(address: str) -> None:
    status, _, body = await spoken(address, b"GET /health HTTP/1.1\r\nhost")
    assert (status, code_of(body)) == (408, "head_timeout")
    assert await spoken(address, b"") == (0, {}, b"")
    # On a connection that was used before, too.
    request = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
    status, _, body = await spoken(address, request + b"GET")
    assert status == 200
    assert body.endswith(b"}") and b"head_timeout" in body


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        b"\0" * 100,
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET http://a HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx\0y: z\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_no_http(address: str, sent: bytes) -> None:
    status, _, body = await spoken(address, sent)
    assert status in (400, 401)
    assert json.loads(body)["error"]["type"] in ("invalid_request_error", "authentication_error")


async def test_an_upgrade_that_is_not_offered(address: str) -> None:
    asked = "connection: upgrade", "upgrade: websocket", "sec-websocket-key: eA==", "connection: close"
    status, _, _ = await spoken(address, head("/v1/chat/completions", *asked, "content-length: 0"))
    assert status == 400


async def test_good_requests_follow_refused_ones_on_one_connection(patient: str) -> None:
    async with httpx.AsyncClient(
        headers={"authorization": f"Bearer {KEY}"}, limits=httpx.Limits(max_connections=1), timeout=DEADLINE_S
    ) as client:
        for _ in range(3):
            large = await client.post(f"{patient}/v1/chat/completions", content=b" " * 100_000)
            assert large.status_code == 413
            good = await client.post(f"{patient}/v1/chat/completions", json=DIALECTS["/v1/chat/completions"])
            assert good.status_code == 200


async def test_connections_that_say_nothing_are_closed(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")
    readers = [(await asyncio.open_connection(host, int(port)))[0] for _ in range(50)]
    for reader in readers:
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.read() == b""
    await until(lambda: all(reader.at_eof() for reader in readers))

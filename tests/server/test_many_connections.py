"""Two hundred connections that are hardly used: others are served, too much is refused, all is given back.

Ten thousand, with times: `make bench-connections`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import cast

import httpx
import orjson
import pytest
from bench.serving.held_connections import KINDS, deep_body
from bench.serving.lean_http import http_request
from live import KEY, run_gateway
from scripted_engine import ScriptedEngine
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from art.rendering.library import LibraryRenderer
from art.server.settings import LimitSettings
from waiting import DEADLINE_S, until

CONNECTIONS = 200
LIMITS = LimitSettings(body_bytes=(4 << 20) + 200_000)
HALF = 1 << 20
"""Bytes of a body that does not end, of which ten are sent: four of them may be in memory."""
CHAT = {"model": "player", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
async def test_connections_that_are_hardly_used(
    tmp_path: Path, engine: ScriptedEngine, renderer: LibraryRenderer
) -> None:
    async with run_gateway(tmp_path / "ledger.sqlite", engine, renderer, limits=LIMITS) as live:
        host, _, port = live.url.removeprefix("http://").partition(":")
        job = {"host": host, "port": int(port), "key": KEY}
        opened: list[asyncio.StreamWriter] = []
        answers: Counter[bytes] = Counter()

        async def hold(number: int) -> None:
            source = (f"127.0.0.{2 + number % 20}", 0)
            streams = await asyncio.open_connection(host, int(port), local_addr=source)
            opened.append(streams[1])
            if number % 20 == 0:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n"
                streams[1].write(f"{head}content-length: {2 * HALF}\r\n\r\n".encode() + b" " * HALF)
                answers[await streams[0].readline()] += 1
            else:
                await (deep_body if number % 20 == 1 else KINDS[number % len(KINDS)])(job, streams)

        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=DEADLINE_S) as client:
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            before = open_files()
            holders = [asyncio.create_task(hold(number)) for number in range(CONNECTIONS)]
            memory = live.app.bodies
            await until(lambda: len(opened) == CONNECTIONS and answers.total() >= 6)
            assert memory._bytes <= LIMITS.body_bytes
            assert set(answers) == {b"HTTP/1.1 429 Too Many Requests\r\n"}
            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            for one in holders:
                one.cancel()
            ended = await asyncio.gather(*holders, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError | OSError | None) for one in ended), ended
            for writer in opened:
                writer.close()
            await until(lambda: not memory._bytes and not memory.bytes_of)
            gc.collect()
            await until(lambda: open_files() <= before)
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


def kept_of(port: int) -> list[str]:
    """Connections of this server, since those of other tests may live on, and frames that an error keeps."""
    kept = gc.get_objects()
    connections = [one for one in kept if issubclass(type(one), HttpToolsProtocol)]
    frames = [one.tb_frame.f_code for one in kept if isinstance(one, TracebackType)]
    mine = [repr(one) for one in connections if one.server is not None and one.server[1] == port]
    return mine + [one.co_qualname for one in frames if one.co_filename.endswith("server/app.py")]


REQUESTS = {
    "health": ("GET", "/health", b""),
    "chat": ("POST", "/v1/chat/completions", orjson.dumps(CHAT)),
    "streamed": ("POST", "/v1/chat/completions", orjson.dumps({**CHAT, "stream": True})),
    "refused": ("POST", "/v1/chat/completions", orjson.dumps({**CHAT, "max_tokens": -1})),
    "refused by a thread": ("POST", "/v1/chat/completions", b"[" * 200_000),
    "nobody": ("POST", "/v1/chat/completions", orjson.dumps({**CHAT, "model": "nobody"})),
    "no route": ("GET", "/nothing", b""),
    "no tokens": ("POST", "/tokenize", orjson.dumps({"model": "nobody", "prompt": "hello"})),
}
BROKEN_OFF = struct.pack("ii", 1, 0)
"""SO_LINGER with which a socket is reset, not closed."""


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_connection_that_has_ended_is_forgotten_at_once(
    tmp_path: Path, engine: ScriptedEngine, renderer: LibraryRenderer, name: str, is_reset: bool
) -> None:
    """The server collects garbage so rarely that connections in a cycle of references would stay for days,
    with the bodies of what was refused.
    """

    async with run_gateway(tmp_path / "ledger.sqlite", engine, renderer) as live:
        host, _, port = live.url.removeprefix("http://").partition(":")
        request = http_request({"host": host, "key": KEY}, *REQUESTS[name])
        gc.collect()
        before = kept_of(int(port))
        gc.disable()
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            assert (await reader.readline()).startswith(b"HTTP/1.1 ")
            assert kept_of(int(port)) != before
            if is_reset:
                socket_of(writer).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, BROKEN_OFF)
            writer.close()
            await until(lambda: kept_of(int(port)) == before)
        finally:
            gc.enable()


def socket_of(writer: asyncio.StreamWriter) -> socket.socket:
    return cast(socket.socket, writer.get_extra_info("socket"))

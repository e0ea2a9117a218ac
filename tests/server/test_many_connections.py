"""Two hundred connections that are hardly used: others are served, too much is refused, all is given back.

Ten thousand, with times: `make bench-connections`.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from pathlib import Path

import httpx
import pytest
from bench.serving.held_connections import KINDS, deep_body
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


@pytest.mark.slow
async def test_a_connection_that_has_ended_is_forgotten_at_once(
    tmp_path: Path, engine: ScriptedEngine, renderer: LibraryRenderer
) -> None:
    """The server collects garbage so rarely that connections in a cycle of references would stay for days."""

    async with run_gateway(tmp_path / "ledger.sqlite", engine, renderer) as live:
        headers = {"authorization": f"Bearer {KEY}"}
        port = int(live.url.rpartition(":")[2])

        def connections() -> int:
            """Of this server alone: servers of other tests may still live in this process."""
            kept = [one for one in gc.get_objects() if issubclass(type(one), HttpToolsProtocol)]
            return sum(one.server is not None and one.server[1] == port for one in kept)

        gc.collect()
        gc.disable()
        try:
            async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=DEADLINE_S) as client:
                assert (await client.get("/health")).status_code == 200
                assert connections() == 1
            await until(lambda: not connections())
        finally:
            gc.enable()

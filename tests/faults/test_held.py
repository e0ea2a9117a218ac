"""Two thousand requests at once on one real server: none fails, none is lost, `/health` answers meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from pathlib import Path

import psutil
import pytest
from server_process import KEY, ServerProcess, stop_signal

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_starts")]  # a fork has more in memory

HELD = 2000
MEMORY = 400 * 2**20
"""Bytes; a server that has just started has 120 MiB."""


async def connect(server: ServerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = server.http.base_url
    return await asyncio.open_connection(url.host, url.port)


def head(method: str, path: str, length: int = 0) -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nhost: art\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


async def send(writer: asyncio.StreamWriter, number: int) -> None:
    message = {"role": "user", "content": f"hello {number}"}
    asked = {"model": "player", "messages": [message], "max_tokens": 4, "stream": number % 2 == 1}
    body = json.dumps(asked).encode()
    writer.write(head("POST", "/v1/chat/completions", len(body)) + body)
    await writer.drain()


async def whole_reply(reader: asyncio.StreamReader) -> bytes:
    """Head and body of a reply, whole or in chunks."""
    told = await reader.readuntil(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in told.lower():
        return told + await reader.readuntil(b"0\r\n\r\n")
    length = int(told.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return told + await reader.readexactly(length)


def samples_in(reply: bytes) -> set[str]:
    return {text.split('"')[2] for text in reply.decode().split('"sample_id')[1:]}


async def test_two_thousand_requests_are_held_and_answered(server: ServerProcess, tmp_path: Path) -> None:
    assert server.process is not None
    engine, gateway = server.workers()["engine"], psutil.Process(server.process.pid)
    async with asyncio.timeout(300):
        connections = []
        for _ in range(HELD // 50):
            connections += await asyncio.gather(*(connect(server) for _ in range(50)))
        health = await connect(server)
        stop_signal(engine)
        try:
            for number, (_, writer) in enumerate(connections):
                await send(writer, number)
            replies = [asyncio.create_task(whole_reply(reader)) for reader, _ in connections]
            for _ in range(20):
                health[1].write(head("GET", "/health"))
                assert (await whole_reply(health[0])).startswith(b"HTTP/1.1 200")
                assert not any(reply.done() for reply in replies), "nothing can be answered yet"
        finally:
            engine.send_signal(signal.SIGCONT)
        answers = await asyncio.gather(*replies)
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert not any(b'"error"' in answer for answer in answers)
    told = [samples_in(answer) for answer in answers]
    assert all(len(names) == 1 for names in told)
    with sqlite3.connect(server.data_dir / "server" / "ledger.sqlite") as file:
        kept = {row[0] for row in file.execute("SELECT sample_id FROM samples")}
    assert set().union(*told) == kept and len(kept) == HELD
    assert gateway.memory_info().rss < MEMORY
    for _, writer in [*connections, health]:
        writer.close()

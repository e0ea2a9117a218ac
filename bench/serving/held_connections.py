"""Connections that are opened and hardly used, as a load process (`bench/serving/load.py`) holds them.

They come from several loopback addresses: one has 28,000 ports. A connection that the server ends is opened
again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from art.process.resources import raise_file_limit
from bench.serving.lean_http import http_request

OPENING = 64
"""Connections that are opened at the same time."""
SOURCES = 200
"""Addresses 127.0.0.2 and following."""
PAUSE_S = 1.0
BODY = 100_000
DEEP = 200_000
TAKEN = 3_600
"""Bytes of an answer that are taken, one a second."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def idle(job: dict[str, Any], streams: Streams) -> None:
    """One question, and then nothing until the server hangs up."""
    reader, writer = streams
    writer.write(http_request(job, "GET", "/health"))
    while await reader.read(65_536):
        continue


async def half_head(job: dict[str, Any], streams: Streams) -> None:
    """A head that does not end."""
    reader, writer = streams
    writer.write(http_request(job, "GET", "/health")[:-3])
    await reader.read()


async def slow_body(job: dict[str, Any], streams: Streams) -> None:
    """A body of which a byte comes each second."""
    reader, writer = streams
    request = http_request(job, "POST", "/v1/chat/completions", b" " * BODY)
    start = len(request) - BODY
    writer.write(request[:start])
    ended = asyncio.ensure_future(reader.read(1))
    for at in itertools.count(start):
        if ended.done() or at >= len(request):
            break
        writer.write(request[at : at + 1])
        await asyncio.wait([ended], timeout=PAUSE_S)
    ended.cancel()


async def slow_reader(job: dict[str, Any], streams: Streams) -> None:
    """A long answer of which a byte is taken each second: what does not fit into the sockets waits."""
    reader, writer = streams
    writer.write(http_request(job, "GET", "/openapi.json"))
    for _ in range(TAKEN):
        if not await reader.read(1):
            break
        await asyncio.sleep(PAUSE_S)


async def deep_body(job: dict[str, Any], streams: Streams) -> None:
    """A body of lists in lists, and the answer to it."""
    reader, writer = streams
    writer.write(http_request(job, "POST", "/v1/chat/completions", b"[" * DEEP))
    await reader.read(65_536)
    await asyncio.sleep(10 * PAUSE_S)


KINDS: tuple[Callable[[dict[str, Any], Streams], Awaitable[None]], ...] = (
    *(idle, idle, idle, idle, idle, idle),
    *(half_head, slow_body, slow_reader),
)
EACH_DEEP = 100
"""One of so many connections sends deep bodies."""


async def held(job: dict[str, Any]) -> dict[str, Any]:
    """Holds `connections` until the standard input ends. Writes a line once all have been open.

    Returns how many were opened and ended, and the most that were open at a time.
    """
    raise_file_limit()
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    opening, counts = asyncio.Semaphore(OPENING), Counter[str]()
    ready = asyncio.Event()

    async def hold(number: int) -> None:
        use = deep_body if number % EACH_DEEP == 0 else KINDS[number % len(KINDS)]
        source = (f"127.0.0.{2 + number % SOURCES}", 0)
        while True:
            try:
                async with opening:
                    streams = await asyncio.open_connection(
                        job["host"], job["port"], limit=4096, local_addr=source
                    )
            except OSError as error:
                counts[f"not opened: {error.strerror or error}"] += 1
                await asyncio.sleep(PAUSE_S)
                continue
            counts["opened"] += 1
            counts["open"] += 1
            counts["most"] = max(counts["most"], counts["open"])
            if counts["open"] == job["connections"]:
                ready.set()
            try:
                await use(job, streams)
            except OSError:
                counts["cut off"] += 1
            finally:
                counts["open"] -= 1
                streams[1].close()

    holders = [asyncio.create_task(hold(number)) for number in range(job["connections"])]
    try:
        await asyncio.wait_for(ready.wait(), job["within"])
        sys.stdout.write(json.dumps({"open": counts["open"]}) + "\n")
        sys.stdout.flush()
        await over
    finally:
        for one in holders:
            one.cancel()
        await asyncio.gather(*holders, return_exceptions=True)
    return {"counts": counts}

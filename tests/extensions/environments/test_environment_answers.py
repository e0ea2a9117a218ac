"""An answer of an environment's server is read within a limit of bytes, and its session survives that."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from art.errors import EnvironmentFailedError
from art_extensions.environments.environment_server import MOST_BYTES, EnvironmentServer, ServerSession

pytestmark = pytest.mark.extension


class EndlessServer:
    """Answers `/long` without an end, `/packed` with gzip, and anything with whether the cookie was sent."""

    def __init__(self) -> None:
        self.sent = 0
        self.ended = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        try:
            if b" /long " in head:
                await self._send_without_end(writer)
            body, more = b'{"cookie": %d}' % head.lower().count(b"cookie: it=1"), b""
            if b" /packed " in head:
                body, more = gzip.compress(body), b"content-encoding: gzip\r\n"
            writer.write(
                b"HTTP/1.1 200 OK\r\nset-cookie: it=1\r\nconnection: close\r\n" + more + b"\r\n" + body
            )
            await writer.drain()
        except ConnectionError:
            self.ended.set()
        finally:
            writer.close()

    async def _send_without_end(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            self.sent += 0x10000
            await writer.drain()


@asynccontextmanager
async def session_of(world: EndlessServer) -> AsyncIterator[ServerSession]:
    server = await asyncio.start_server(world.answer, "127.0.0.1")
    sessions = EnvironmentServer("it", deadline_s=60.0, connections=2)
    try:
        yield sessions.open(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        await sessions.close()
        server.close()


async def test_an_answer_without_end_is_refused_and_not_read_on() -> None:
    world = EndlessServer()
    async with session_of(world) as session:
        with pytest.raises(
            EnvironmentFailedError, match=f"'it': /long failed.* longer than {MOST_BYTES} bytes"
        ):
            await session.send("/long", {"row": 1})
        await asyncio.wait_for(world.ended.wait(), 30)
    assert MOST_BYTES < world.sent < 2 * MOST_BYTES, "what the sockets hold is all that was sent in vain"


async def test_an_answer_that_is_packed_unasked_is_refused() -> None:
    async with session_of(EndlessServer()) as session:
        with pytest.raises(EnvironmentFailedError, match=r"/packed failed.* packed \(gzip\)"):
            await session.ask("/packed", {"row": 1})


async def test_a_session_keeps_its_cookies_after_a_refused_answer() -> None:
    async with session_of(EndlessServer()) as session:
        assert await session.ask("/seed", None) == {"cookie": 0}
        with pytest.raises(EnvironmentFailedError):
            await session.ask("/packed", {"row": 1})
        assert await session.ask("/verify", {"row": 1}) == {"cookie": 1}

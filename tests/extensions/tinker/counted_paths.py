"""Passes the bytes of HTTP connections on, and counts the requests of each path."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_REQUEST = re.compile(rb"(?:GET|POST|PUT|DELETE) (/[^ ?]*)[^ ]* HTTP/1\.1\r\n")
_LONGEST = 400
"""Bytes of a request's first line."""


@dataclass(kw_only=True, eq=False)
class CountingProxy:
    """One for a service that may be killed and started again: a connection ends with either side."""

    target: int
    """The port of the service."""
    port: int = 0
    requests: Counter[str] = field(default_factory=Counter)

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        ways = [self._pump(reader, there[1], counting=True), self._pump(there[0], writer, counting=False)]
        tasks = [asyncio.create_task(one) for one in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, there[1]):
            one.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counting: bool
    ) -> None:
        last = b""
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                if counting:
                    last += piece
                    for found in _REQUEST.finditer(last):
                        self.requests[found[1].decode().removeprefix("/api/v1/")] += 1
                    end = max((found.end() for found in _REQUEST.finditer(last)), default=0)
                    last = last[max(end, len(last) - _LONGEST) :]
                writer.write(piece)
                await writer.drain()


@contextmanager
def counted(target: int) -> Iterator[CountingProxy]:
    """A proxy before a port of this machine, in a thread of its own."""
    proxy, loop = CountingProxy(target=target), asyncio.new_event_loop()

    async def open_port() -> asyncio.Server:
        return await asyncio.start_server(proxy.pass_on, "127.0.0.1", 0)

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(open_port(), loop).result()
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:

        async def end() -> None:
            server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

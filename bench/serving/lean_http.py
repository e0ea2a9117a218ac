"""HTTP/1.1 that costs a client little: one connection, one request at a time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import httptools


@dataclass(slots=True)
class Reply:
    """One answer: status, body, seconds from the first byte sent to the last one read."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    seconds: float = 0.0


class Connection(asyncio.Protocol):
    """HTTP/1.1, one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._reply = Reply()
        self._done: asyncio.Future[Reply] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"closed within a reply: {error!r}"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._reply.body += body

    def on_message_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()
        assert self._done is not None
        if not self._done.done():
            self._done.set_result(self._reply)

    async def ask(self, request: bytes) -> Reply:
        """Raises ConnectionError."""
        assert self.transport is not None
        self._parser, self._reply = httptools.HttpResponseParser(self), Reply()
        self._done = asyncio.get_running_loop().create_future()
        begin = time.perf_counter()
        self.transport.write(request)
        reply = await self._done
        reply.seconds = time.perf_counter() - begin
        return reply


def http_request(job: dict[str, Any], method: str, path: str, body: bytes = b"") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {job['host']}\r\nauthorization: Bearer {job['key']}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def connect(job: dict[str, Any], opening: asyncio.Semaphore) -> Connection:
    async with opening:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, job["host"], job["port"]
        )
    return connection

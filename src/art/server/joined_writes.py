"""A reply's head leaves with what follows it: a write of its own would wake the client twice."""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD = b"HTTP/"


class JoinedWrites:
    """A transport that keeps a reply's head until the next write, or the event loop's next turn."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""

    def write(self, data: bytes) -> None:
        """As the transport's own."""
        if self._head:
            data, self._head = self._head + data, b""
            self._transport.write(data)
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """As the transport's own: what was written is sent."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """As the transport's own."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

"""Server-sent events: a stream's events, written in a dialect, sent as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

import orjson

from art.errors import ARTError
from art.server.dialects.told import StreamEvent
from art.server.http import Send

_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")],
}


class StreamWriter(Protocol):
    """A dialect's words for a stream. Each method gives bytes of server-sent events, empty for none."""

    def write(self, event: StreamEvent) -> bytes:
        """`Begun` first, then what happens to the choices."""
        ...

    def close(self) -> bytes:
        """After the last choice has ended."""
        ...

    def fail(self, error: ARTError) -> bytes:
        """Instead of all that would have followed."""
        ...


async def stream_reply(events: AsyncIterator[StreamEvent], writer: StreamWriter, send: Send) -> bool:
    """Send the whole stream; False: it ended with an error.

    Raises: ARTError before the first byte; later ones the writer tells.
    """
    started, failed = False, False
    try:
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                body = writer.write(event)
                if not started:
                    await send(_START)
                    started = True
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        last = writer.close()
    except ARTError as error:
        if not started:
            raise
        last, failed = writer.fail(error), True
    await send({"type": "http.response.body", "body": last})
    return not failed


def data(body: bytes) -> bytes:
    """One event without a name."""
    return b"data: " + body + b"\n\n"


def named(name: str, body: dict[str, Any]) -> bytes:
    """One event with its name."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"

"""Replies of an MCP server over HTTP, within limits: of a message, of its values, and of a whole reply.

The SDK reads a body of any length, and whatever a packed one unpacks to, and makes its objects in the event
loop. Here a body is unpacked in small pieces, and a message (a body of JSON, or an event of a stream) goes on
to the SDK once all of it is known to be small enough.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Mapping

from art.errors import McpError
from art.process.foreign_files import parse_json

MESSAGE_LIMIT = 4 << 20
"""Bytes of one message, unpacked."""
REPLY_LIMIT = 16 << 20
"""Bytes of all messages of one reply, unpacked."""
MOST_VALUES = 30_000
"""The values of a message."""
MOST_ITEMS = 2_500
"""The items of a list of a result: the SDK makes an object of each in the event loop. Tools come in pages."""
ENCODINGS = "gzip, deflate"
"""What a server may pack a reply with."""
_AT_ONCE = 1 << 16
"""Bytes that are unpacked, or handed on, before others of the event loop have their turn."""
BY_THREAD = 128 * 1024
"""Bytes from which a message is looked through by a thread."""
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_TEXT = re.compile(rb'"(?>[^"\\]++|\\.)*+"?', re.DOTALL)


async def limit_reply(pieces: AsyncIterator[bytes], headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Yields the body of a reply, unpacked; nothing of a message before it is whole.

    pieces: as they travelled. headers: of the reply. Raises McpError, whose text says what the server did.
    """
    is_stream = headers.get("content-type", "").lower().startswith("text/event-stream")
    unsent, total = bytearray(), 0
    async for piece in _unpack(pieces, headers.get("content-encoding", "").strip().lower()):
        total += len(piece)
        if total > REPLY_LIMIT:
            raise McpError(f"sent a reply of more than {REPLY_LIMIT >> 20} MB")
        looked = max(0, len(unsent) - 2)  # a blank line may have begun there
        unsent += piece
        if is_stream and (end := _last_end(unsent, looked)):
            async for part in _checked(bytes(unsent[:end]), is_stream):
                yield part
            del unsent[:end]
        if len(unsent) > MESSAGE_LIMIT:
            raise McpError(f"sent a message of more than {MESSAGE_LIMIT >> 20} MB")
    async for part in _checked(bytes(unsent), is_stream):
        yield part


async def _unpack(pieces: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    """Yields at most `_AT_ONCE` bytes each time, so that few packed bytes do not become many at once."""
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise McpError(f"packed a reply with {encoding[:40]!r}, which was not asked for")
    unpacker = None if encoding in ("", "identity") else zlib.decompressobj(zlib.MAX_WBITS | 32)
    async for piece in pieces:
        if unpacker is None:
            for start in range(0, len(piece), _AT_ONCE):
                yield piece[start : start + _AT_ONCE]
            continue
        packed = piece
        while packed and not unpacker.eof:
            try:
                unpacked = unpacker.decompress(packed, _AT_ONCE)
            except zlib.error as error:
                raise McpError(f"sent a damaged reply: {error}") from None
            packed = unpacker.unconsumed_tail
            yield unpacked
    if unpacker is not None:
        yield unpacker.flush()  # what its window holds, 32 KB


def _last_end(stream: bytearray, start: int) -> int:
    """The place after the last blank line at `start` or later; 0: there is none."""
    found = [(stream.rfind(mark, start), len(mark)) for mark in _BLANK_LINES]
    return max((place + length for place, length in found if place >= 0), default=0)


async def _checked(body: bytes, is_stream: bool) -> AsyncIterator[bytes]:
    """Yields the body in parts. Raises McpError for a message with too much in it."""
    if len(body) > BY_THREAD:
        await asyncio.to_thread(_check, body, is_stream)
    else:
        _check(body, is_stream)
    for start in range(0, len(body), _AT_ONCE):
        if start:
            await asyncio.sleep(0)
        yield body[start : start + _AT_ONCE]


def _check(body: bytes, is_stream: bool) -> None:
    for message in _messages(body) if is_stream else [body]:
        bare = _TEXT.sub(b"", message)
        values = bare.count(b"{") + bare.count(b"[") + bare.count(b",")
        if values > MOST_VALUES:
            raise McpError(f"sent a message with more than {MOST_VALUES} values")
        if values > MOST_ITEMS and (items := _items(message)) > MOST_ITEMS:
            raise McpError(f"sent a message with {items} items, more than {MOST_ITEMS}")


def _messages(stream: bytes) -> list[bytes]:
    """The data of each event."""
    events: list[list[bytes]] = [[]]
    for line in _LINE_END.split(stream):
        if not line:
            events.append([])
        elif line.startswith(b"data:"):
            events[-1].append(line[5:])
    return [b"\n".join(lines) for lines in events]


def _items(message: bytes) -> int:
    try:
        value = parse_json(message)
    except ValueError:
        return 0  # the SDK has an error for it
    return longest_list(value.get("result")) if isinstance(value, dict) else 0


def longest_list(result: object) -> int:
    """Returns the items of the longest list that a result has: tools, or parts of a text."""
    values = result.values() if isinstance(result, dict) else ()
    return max((len(one) for one in values if isinstance(one, list)), default=0)

"""The body of a response that somebody else reads, piece by piece, for an observer who gets it once.

Only the response is touched, not its class: httpx's and requests' by methods of its own, aiohttp's by a
reader around its reader.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

BodyReader = Callable[[bytes], None]

_DONE = re.compile(rb"(?:\A|[\r\n])(?:data: ?\[DONE\]|event: ?message_stop)")
"""The last event of a stream of completions or messages. Texts inside of events have no raw line breaks."""
_TAIL = len(b"\nevent: message_stop") - 1


def watch_body(response: Any, *tellers: BodyReader) -> BodyWatch | None:
    """Call each of `tellers` once with the decoded body of an httpx response, at once if it was already read.

    Otherwise when a stream's last event was read or its reader closes the response, which reading to the end
    does; the body is then what was read.
    """
    try:
        body = response.content
    except RuntimeError:  # httpx and httpx2 each have a ResponseNotRead; this is what they share
        return _HttpxWatch(response, tellers)
    for tell in tellers:
        tell(body)
    return None


def watch_requests_body(response: Any, tell: BodyReader) -> BodyWatch | None:
    """Does the same for a response of `requests`."""
    if not response._content_consumed:
        return _RequestsWatch(response, (tell,))
    tell(response.content)
    return None


def watch_aiohttp_body(response: Any, tell: BodyReader) -> BodyWatch:
    """Does the same for a response of aiohttp, which nobody can have read yet."""
    watch = BodyWatch((tell,))
    response.content = _HeardReader(response.content, watch)
    return watch


class BodyWatch:
    """Collects pieces of a body. They are joined once, at the end."""

    def __init__(self, tellers: tuple[BodyReader, ...]) -> None:
        self._tellers = list(tellers)
        self._pieces: list[bytes] = []
        self._tail = b""

    def hand_over(self, tell: BodyReader) -> None:
        """Passes what was read so far to one of the observers, unless it has it already."""
        if tell in self._tellers:
            self._tellers.remove(tell)
            tell(b"".join(self._pieces))

    def add_piece(self, piece: bytes) -> None:
        """Takes what the reader of the body read."""
        if not self._tellers:
            return
        self._pieces.append(piece)
        recent = self._tail + piece
        self._tail = recent[-_TAIL:]
        if _DONE.search(recent):  # some readers stop here and never close
            self.end()

    def end(self) -> None:
        """Passes the body on: no more of it is read."""
        for tell in list(self._tellers):
            self.hand_over(tell)
        self._pieces.clear()


class _HttpxWatch(BodyWatch):
    def __init__(self, response: Any, tellers: tuple[BodyReader, ...]) -> None:
        super().__init__(tellers)
        self._response = response
        self._iter, self._aiter = response.iter_bytes, response.aiter_bytes
        self._close, self._aclose = response.close, response.aclose
        response.iter_bytes, response.aiter_bytes = self.iter_bytes, self.aiter_bytes
        response.close, response.aclose = self.close, self.aclose

    def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        with closing(self._iter(chunk_size)) as pieces:
            for piece in pieces:
                self.add_piece(piece)
                yield piece

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        async with aclosing(self._aiter(chunk_size)) as pieces:
            async for piece in pieces:
                self.add_piece(piece)
                yield piece

    def close(self) -> None:
        self._close()
        self.end()

    async def aclose(self) -> None:
        await self._aclose()
        self.end()

    def end(self) -> None:
        for name in ("iter_bytes", "aiter_bytes", "close", "aclose"):
            vars(self._response).pop(name, None)  # the response's own methods show again
        super().end()


class _RequestsWatch(BodyWatch):
    def __init__(self, response: Any, tellers: tuple[BodyReader, ...]) -> None:
        super().__init__(tellers)
        self._response = response
        self._iter, self._close = response.iter_content, response.close
        response.iter_content, response.close = self.iter_content, self.close

    def iter_content(self, chunk_size: int | None = 1, decode_unicode: bool = False) -> Iterator[Any]:
        encoding = self._response.encoding or "utf-8"
        for piece in self._iter(chunk_size, decode_unicode):
            self.add_piece(piece if isinstance(piece, bytes) else piece.encode(encoding))
            yield piece
        self.end()

    def close(self) -> None:
        self._close()
        self.end()

    def end(self) -> None:
        for name in ("iter_content", "close"):
            vars(self._response).pop(name, None)
        super().end()


class _HeardReader:
    """A reader of aiohttp whose pieces are collected. All that it does not know is the reader's own."""

    def __init__(self, reader: Any, watch: BodyWatch) -> None:
        self._reader, self._watch = reader, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def read(self, n: int = -1) -> bytes:
        return await self._collect(self._reader.read(n))

    async def readany(self) -> bytes:
        return await self._collect(self._reader.readany())

    async def readline(self, **options: Any) -> bytes:
        return await self._collect(self._reader.readline(**options))

    async def readuntil(self, separator: bytes = b"\n", **options: Any) -> bytes:
        return await self._collect(self._reader.readuntil(separator, **options))

    async def readexactly(self, n: int) -> bytes:
        return await self._collect(self._reader.readexactly(n))

    async def readchunk(self) -> tuple[bytes, bool]:
        piece, is_end = await self._reader.readchunk()
        self._take(piece)
        return piece, is_end

    def read_nowait(self, n: int = -1) -> bytes:
        piece: bytes = self._reader.read_nowait(n)
        self._take(piece)
        return piece

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        while piece := await self.read(n):
            yield piece

    async def iter_any(self) -> AsyncIterator[bytes]:
        while piece := await self.readany():
            yield piece

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        while (chunk := await self.readchunk()) != (b"", False):
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while line := await self.readline():
            yield line

    async def _collect(self, reading: Awaitable[bytes]) -> bytes:
        piece = await reading
        self._take(piece)
        return piece

    def _take(self, piece: bytes) -> None:
        self._watch.add_piece(piece)
        if self._reader.at_eof():
            self._watch.end()

"""The body of a response that somebody else reads: kept piece by piece, told when the response ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any


def watch(response: Any, tell: Callable[[bytes], None]) -> None:
    """Call `tell` once with the decoded body of an httpx response, at once if it was already read.

    Otherwise when its reader closes it, which reading to the end does; the body is then what was read. Only
    this response is touched, not its class.
    """
    try:
        body = response.content
    except RuntimeError:  # httpx and httpx2 each have a ResponseNotRead; this is what they share
        _Watch(response, tell)
    else:
        tell(body)


class _Watch:
    """Stands between a response and its reader. The pieces are joined once, at the end."""

    def __init__(self, response: Any, tell: Callable[[bytes], None]) -> None:
        self._response, self._tell = response, tell
        self._pieces: list[bytes] = []
        self._ended = False
        self._iter, self._aiter = response.iter_bytes, response.aiter_bytes
        self._close, self._aclose = response.close, response.aclose
        response.iter_bytes, response.aiter_bytes = self.iter_bytes, self.aiter_bytes
        response.close, response.aclose = self.close, self.aclose

    def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        with closing(self._iter(chunk_size)) as pieces:
            for piece in pieces:
                self._keep(piece)
                yield piece

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        async with aclosing(self._aiter(chunk_size)) as pieces:
            async for piece in pieces:
                self._keep(piece)
                yield piece

    def close(self) -> None:
        self._close()
        self._end()

    async def aclose(self) -> None:
        await self._aclose()
        self._end()

    def _keep(self, piece: bytes) -> None:
        if not self._ended:
            self._pieces.append(piece)

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        for name in ("iter_bytes", "aiter_bytes", "close", "aclose"):
            vars(self._response).pop(name, None)  # the response's own methods show again
        body = b"".join(self._pieces)
        self._pieces.clear()
        self._tell(body)

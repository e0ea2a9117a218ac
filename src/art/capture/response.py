"""The body of a response that somebody else reads: kept piece by piece, told when it is complete."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

Tell = Callable[[bytes], None]

_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]")
"""The last event of a stream of completions. Texts inside of events have no raw line breaks."""
_TAIL = len(b"\ndata: [DONE]") - 1


def watch(response: Any, *tellers: Tell) -> Watch | None:
    """Call each of `tellers` once with the decoded body of an httpx response, at once if it was already read.

    Otherwise when a stream's last event was read or its reader closes the response, which reading to the end
    does; the body is then what was read. Only this response is touched, not its class.
    """
    try:
        body = response.content
    except RuntimeError:  # httpx and httpx2 each have a ResponseNotRead; this is what they share
        return Watch(response, tellers)
    for tell in tellers:
        tell(body)
    return None


class Watch:
    """Stands between a response and its reader. The pieces are joined once, at the end."""

    def __init__(self, response: Any, tellers: tuple[Tell, ...]) -> None:
        self._response, self._tellers = response, list(tellers)
        self._pieces: list[bytes] = []
        self._tail = b""
        self._iter, self._aiter = response.iter_bytes, response.aiter_bytes
        self._close, self._aclose = response.close, response.aclose
        response.iter_bytes, response.aiter_bytes = self.iter_bytes, self.aiter_bytes
        response.close, response.aclose = self.close, self.aclose

    def settle(self, tell: Tell) -> None:
        """Tell one of the tellers now what was read so far, unless it knows already."""
        if tell in self._tellers:
            self._tellers.remove(tell)
            tell(b"".join(self._pieces))

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
        if not self._tellers:
            return
        self._pieces.append(piece)
        recent = self._tail + piece
        self._tail = recent[-_TAIL:]
        if _DONE.search(recent):  # some readers stop here and never close
            self._end()

    def _end(self) -> None:
        for name in ("iter_bytes", "aiter_bytes", "close", "aclose"):
            vars(self._response).pop(name, None)  # the response's own methods show again
        for tell in list(self._tellers):
            self.settle(tell)
        self._pieces.clear()

"""A worker's stderr on disk, never larger than twice its limit, with its last lines at hand for error
messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

_TAIL_LINES = 40


class WorkerLog:
    """Appends to `path`; at `limit` bytes the file becomes `path` + `.1` and a new one begins."""

    def __init__(self, path: Path, *, limit: int = 2_000_000) -> None:
        self.path = path
        self._limit = limit
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def write(self, data: bytes) -> None:
        self._tail.extend(data.decode(errors="replace").splitlines())
        self._file.write(data)
        self._file.flush()
        if self._file.tell() >= self._limit:
            self._file.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._file = self.path.open("ab")

    def tail(self, lines: int = 12) -> str:
        """The last lines, for a message."""
        return "\n".join(list(self._tail)[-lines:])

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Copy a pipe until its end. Read in pieces: one endless line must not stop the copy."""
        while data := await stream.read(65536):
            self.write(data)

    def close(self) -> None:
        self._file.close()

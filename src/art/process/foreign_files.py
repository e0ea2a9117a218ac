"""Files that somebody else wrote, and replies of their servers, read within limits: of bytes, of nesting, and
of what a compressed one unpacks to.

A log may hold a line of a gigabyte, brackets in brackets by the thousand, or kilobytes that unpack to
gigabytes; a name may lead to a pipe that nobody writes to. Each of these is one `UnreadableFileError`, and
not a full memory, a full stack, or a program that waits for ever.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from art.errors import UnreadableFileError

if TYPE_CHECKING:
    import httpx

MOST_BYTES = 128 * 1024 * 1024
"""The limit in bytes of one line, or of one value of JSON."""
MOST_DEPTH = 128
"""Lists and objects in one another."""
MOST_RATIO = 200
"""Bytes unpacked for each packed byte. Logs that repeat prompts reach a few dozen, a bomb a thousand."""
_SMALL = 64 * 1024 * 1024
"""Bytes that a file may unpack to whatever its ratio."""
_SKIPPED = 1 << 20
_PLAIN = {"accept-encoding": "identity"}


def open_foreign(path: Path) -> IO[bytes]:
    """Opens a file; one whose name ends in `.gz` is unpacked as it is read.

    Raises OSError, and UnreadableFileError where it is no plain file. Reading raises UnreadableFileError
    where a packed file is damaged or unpacks to far too much.
    """
    # A pipe without a writer is opened at once, and seen to be one.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = open(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UnreadableFileError(f"{path} is no plain file, but a folder, a pipe or a device")
    return cast(IO[bytes], io.BufferedReader(_Unpacked(file, path))) if path.suffix == ".gz" else file


def read_foreign(path: Path) -> bytes:
    """Returns the content of a file, as `open_foreign` opens it, with its errors."""
    with open_foreign(path) as file:
        return file.read()


def read_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Yields the number of each line, from 1 on, and the line; None for one longer than `MOST_BYTES`."""
    number = 0
    while line := file.readline(MOST_BYTES + 1):
        number += 1
        if len(line) <= MOST_BYTES:
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(_SKIPPED)
        yield number, None


async def ask_foreign(
    client: httpx.AsyncClient, method: str, url: str, *, most_bytes: int, body: Any = None
) -> httpx.Response:
    """Returns the whole reply of somebody else's server. body: sent as JSON; None: nothing.

    Raises httpx's errors, and UnreadableFileError where the reply is packed, or as soon as it has more than
    `most_bytes`, without reading on.
    """
    request = client.build_request(method, url, json=body, headers=_PLAIN)
    reply = await client.send(request, stream=True)
    content = bytearray()
    try:
        _check_plain(reply)
        async for part in reply.aiter_raw():
            _add(content, part, most_bytes)
    finally:
        await reply.aclose()
    return type(reply)(reply.status_code, headers=reply.headers, content=bytes(content), request=request)


def ask_foreign_blocking(
    client: httpx.Client, method: str, url: str, *, most_bytes: int, deadline_s: float, body: Any = None
) -> httpx.Response:
    """Does what `ask_foreign` does, in a thread that may wait. deadline_s: until its end, in seconds; a later
    end raises UnreadableFileError.
    """
    until = time.monotonic() + deadline_s
    request = client.build_request(method, url, json=body, headers=_PLAIN)
    reply = client.send(request, stream=True)
    content = bytearray()
    try:
        _check_plain(reply)
        for part in reply.iter_raw():
            _add(content, part, most_bytes)
            if time.monotonic() > until:
                raise UnreadableFileError(f"it did not end within {deadline_s:g} s")
    finally:
        reply.close()
    return type(reply)(reply.status_code, headers=reply.headers, content=bytes(content), request=request)


def _check_plain(reply: httpx.Response) -> None:
    packing = reply.headers.get("content-encoding") or "identity"
    if packing.lower() != "identity":
        raise UnreadableFileError(f"it is packed ({packing:.40}), though asked to be plain")


def _add(content: bytearray, part: bytes, most_bytes: int) -> None:
    content += part
    if len(content) > most_bytes:
        raise UnreadableFileError(f"it is longer than {most_bytes} bytes")


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text. Raises ValueError: UnreadableFileError where it nests too deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep() from None
    # What opens fewer lists and objects cannot nest deeper.
    if not isinstance(text, str) or text.count("{") + text.count("[") > MOST_DEPTH:
        check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raises UnreadableFileError for lists and objects that nest deeper than `MOST_DEPTH`."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list | tuple)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list | tuple)
        ]
        if not level:
            return
    raise too_deep()


def too_deep() -> UnreadableFileError:
    """Returns the error of a value that nests too deep."""
    return UnreadableFileError(f"its lists and objects nest deeper than {MOST_DEPTH} levels")


def too_long() -> UnreadableFileError:
    """Returns the error of a line, or a value, that is too long."""
    return UnreadableFileError(f"it is longer than {MOST_BYTES // 1024**2} MiB")


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, unpacked as it is read."""

    def __init__(self, packed: IO[bytes], path: Path) -> None:
        super().__init__()
        self._packed, self._path = packed, path
        self._file = gzip.GzipFile(fileobj=packed)
        self._size = 0

    def readable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`. Raises UnreadableFileError."""
        try:
            piece = self._file.read1(len(buffer))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UnreadableFileError(f"{self._path} is no whole gzip file: {error}") from error
        self._size += len(piece)
        if self._size > max(_SMALL, MOST_RATIO * self._packed.tell()):
            raise UnreadableFileError(
                f"{self._path} unpacks to more than {MOST_RATIO} times its size: unpack it yourself if it is "
                "yours"
            )
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Closes the file too."""
        if not self.closed:
            self._file.close()
            self._packed.close()
        super().close()

"""Small files that are whole at any moment, and what survives a power cut."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def flush(path: Path) -> None:
    """To the disk: a file's content, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_flushed(path: Path, content: str | bytes) -> None:
    """Write a file that does not exist, to the disk; texts in UTF-8. Raises FileExistsError."""
    _write(path, content, mode=0o666, durable=True)


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o666, durable: bool = True) -> None:
    """Write or replace a file; its folder is made. A reader, or a kill, meets the old file or the new one.

    mode: its permissions from its first byte on, less the process's umask. durable: a power cut after the
    return does not lose it, for two waits for the disk. Texts are written in UTF-8.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path) as fresh:
        _write(fresh, content, mode=mode, durable=durable)
        fresh.replace(path)
    if durable and os.name != "nt":  # Windows opens no folders
        flush(path.parent)


def write_first(path: Path, content: str | bytes, *, mode: int = 0o666) -> bool:
    """Write a file unless there is one; its folder is made. Whole or not at all, to the disk.

    Of several that write at once one is first: the others return False, and leave its file as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path) as fresh:
        _write(fresh, content, mode=mode, durable=True)
        try:
            os.link(fresh, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if path.exists():
                return False
            fresh.replace(path)
    if os.name != "nt":
        flush(path.parent)
    return True


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A fresh name beside the file, which is free again afterwards."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        yield fresh
    finally:
        with suppress(OSError):  # an error on the way is the one to tell
            fresh.unlink(missing_ok=True)


def _write(path: Path, content: str | bytes, *, mode: int, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if durable:
            file.flush()
            os.fsync(file.fileno())

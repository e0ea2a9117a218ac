"""What a full, read-only or failing disk did to a file, in words that lose nobody anything."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from art.errors import DiskError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_CLOSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_SQLITE_FULL, _SQLITE_IO, _SQLITE_PERM, _SQLITE_READ_ONLY, _SQLITE_CANNOT_OPEN = 13, 10, 3, 8, 14
_SCARCE = 1 << 20
"""Bytes. With fewer left, an I/O error that names no cause has this one."""


def disk_trouble(error: BaseException, path: Path) -> str | None:
    """What is wrong with the place of `path`, and what to do. None: the error is not about that.

    error: an OSError, a sqlite3.Error, or what a library made of one. None of these harms what is stored.
    """
    number = getattr(error, "errno", None)
    # The lowest byte is the kind; what is above says where it happened.
    kind = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    free = free_bytes(path)
    scarce = free is not None and free < _SCARCE
    if number in _FULL or kind == _SQLITE_FULL or _says_full(error) or (kind == _SQLITE_IO and scarce):
        left = "" if free is None else f", {free:,} bytes free"
        return f"the disk is full: {path}{left}. Free space and try again; what was stored is kept"
    if number in _CLOSED or kind in {_SQLITE_PERM, _SQLITE_READ_ONLY, _SQLITE_CANNOT_OPEN}:
        return (
            f"{path} cannot be written ({_reason(error)}): check who owns the folder, its permissions, and "
            "whether it is mounted read-only, or choose another folder"
        )
    if number == errno.EIO or kind == _SQLITE_IO:
        return (
            f"the disk fails at {path} ({_reason(error)}): look at the system's log, and keep a copy of the "
            "folder before anything else"
        )
    return None


def disk_error(error: BaseException, path: Path, what: str) -> DiskError:
    """`what` failed, and why."""
    return DiskError(f"{what}: {disk_trouble(error, path) or f'{path}: {_reason(error)}'}")


def free_bytes(path: Path) -> int | None:
    """Of the file system that holds the path, or the first folder above it that there is; None: unknown."""
    if not hasattr(os, "statvfs"):
        return None
    for place in (path, *path.parents):
        try:
            found = os.statvfs(place)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return None


def _says_full(error: BaseException) -> bool:
    """Libraries that are not Python's own (safetensors) keep the words and lose the number."""
    return os.strerror(errno.ENOSPC) in str(error)


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)

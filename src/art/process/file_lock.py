"""A lock on a file that the kernel drops when its holder dies."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PAUSE_SECONDS = 0.01


def take_lock(path: Path, *, patience: float = 0.0, mode: int = 0o600) -> int | None:
    """The descriptor that holds the lock; closing it lets go. None when another one kept it for too long.

    path: made with `mode` if it is not there. patience: seconds to wait for another process or thread.
    Where files have no such lock (Windows) it is always had: one program needs none.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    deadline = time.monotonic() + patience
    try:
        while not _taken(descriptor):
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(_PAUSE_SECONDS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _taken(descriptor: int) -> bool:
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

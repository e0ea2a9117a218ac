"""One writer a folder: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from art.errors import DeadlineError

PATIENCE_SECONDS = 120.0
"""So long a writer may take; it holds the lock for the time of reading and writing a file."""


@contextmanager
def locked(folder: Path, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the folder's lock; the folder is made if it is not there.

    Raises: DeadlineError after `patience` seconds of waiting for another process or thread.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + patience
        while not _taken(descriptor):
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"another process has been writing to {str(folder)!r} for {patience:g} s: "
                    f"look for a stopped process that holds {str(folder / '.lock')!r}"
                )
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    if os.name != "posix":
        return True  # no such lock there; one program needs none
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

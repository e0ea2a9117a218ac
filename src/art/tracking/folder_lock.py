"""One writer a folder: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from art.errors import DeadlineError
from art.process.file_lock import take_lock

PATIENCE_SECONDS = 120.0
"""So long a writer may take; it holds the lock for the time of reading and writing a file."""


@contextmanager
def locked(folder: Path, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the folder's lock; the folder is made if it is not there.

    Raises: DeadlineError after `patience` seconds of waiting for another process or thread.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / ".lock"
    descriptor = take_lock(lock, patience=patience, mode=0o644)
    if descriptor is None:
        raise DeadlineError(
            f"another process has been writing to {str(folder)!r} for {patience:g} s: "
            f"look for a stopped process that holds {str(lock)!r}"
        )
    try:
        yield
    finally:
        os.close(descriptor)

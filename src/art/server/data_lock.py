"""One live server a data folder: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from art.errors import ConfigurationError
from art.process.disk import disk_error
from art.process.file_lock import take_lock

_PATIENCE_SECONDS = 2.0
"""A server that is just ending gets so long."""


class DataLock:
    """Held from construction until `release` or the process's end."""

    def __init__(self, server_dir: Path) -> None:
        """Raises: ConfigurationError naming the folder and the process that holds it, DiskError."""
        lock = server_dir / "lock"
        try:
            server_dir.mkdir(parents=True, exist_ok=True)
            server_dir.chmod(0o700)
            descriptor = take_lock(lock, patience=_PATIENCE_SECONDS)
        except OSError as error:
            raise disk_error(error, server_dir, "the data folder cannot be used") from error
        if descriptor is None:
            holder = lock.read_bytes()[:32].decode("ascii", "replace").strip() or "unknown"
            raise ConfigurationError(
                f"the data folder {server_dir.parent} is in use by another server (process {holder}): "
                "stop it (`await backend.close()`, or end its program), or choose another folder "
                "(LocalBackend(path=...))"
            )
        self._descriptor = descriptor
        os.ftruncate(self._descriptor, 0)
        with contextlib.suppress(OSError):  # on a full disk the lock holds without the holder's name
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another server have the folder."""
        os.close(self._descriptor)

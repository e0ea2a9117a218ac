"""One live server a data folder: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from art.errors import ConfigurationError

_PATIENCE_SECONDS = 2.0
"""A server that is just ending gets so long."""


class DataLock:
    """Held from construction until `release` or the process's end."""

    def __init__(self, server_dir: Path) -> None:
        """Raises: ConfigurationError naming the folder and the process that holds it."""
        server_dir.mkdir(parents=True, exist_ok=True)
        server_dir.chmod(0o700)
        self._descriptor = os.open(server_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._try_lock():
            if time.monotonic() > deadline:
                holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(self._descriptor)
                raise ConfigurationError(
                    f"the data folder {server_dir.parent} is in use by another server (process {holder}): "
                    "stop it, or choose another folder"
                )
            time.sleep(0.05)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let another server have the folder."""
        os.close(self._descriptor)

"""How a program finds the server of a data folder that another program started.

{data_dir}/server/lock            held by the server while it lives: the kernel drops it, and it names the pid
{data_dir}/server/address.json    its address and key (mode 0600, in a folder of mode 0700), while it serves
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from art.process.files import take_lock, write_whole

LOCK_FILE, ADDRESS_FILE, CLUSTER_FILE = "lock", "address.json", "cluster.json"
SERVER_OPTIONS = frozenset({"allow_origins", "cluster", "control", "engine", "limits", "teacher", "trainer"})
"""The settings of a server that a program chooses; the others say where it is."""
_REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """The process, the address on this machine and the key of a server that serves."""

    pid: int
    host: str
    port: int
    key: str = field(repr=False)
    options: str
    """The digest of the options it was started with."""

    @property
    def url(self) -> str:
        """Returns the address that a client on this machine uses."""
        return url_on_this_machine(self.host, self.port)


def host_on_this_machine(host: str) -> str:
    """Returns the name by which this machine reaches a server that listens on `host`."""
    return _REACHED.get(host, host)


def url_on_this_machine(host: str, port: int) -> str:
    """Returns the address by which this machine reaches a server that listens on `host`."""
    name = host_on_this_machine(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def digest_of_options(settings: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the options among a server's settings. 1 and 1.0 are the same."""
    options = {name: value for name, value in settings.items() if name in SERVER_OPTIONS}
    return hashlib.sha256(json.dumps(_plain(options), sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if isinstance(value, float | bool | None) else str(value)


def announce_server(server_dir: Path, server: RunningServer) -> None:
    """Let programs of this user find the server. Raises OSError."""
    write_whole(server_dir / ADDRESS_FILE, json.dumps(asdict(server)), durable=False)


def withdraw_server(server_dir: Path) -> None:
    """The server serves no more."""
    with suppress(OSError):  # a file that stays names a process that does not hold the lock
        (server_dir / ADDRESS_FILE).unlink(missing_ok=True)


def find_server(server_dir: Path) -> RunningServer | None:
    """Returns the server that serves this folder now; None where none does, or its files cannot be read."""
    try:
        holder = (server_dir / LOCK_FILE).read_text(encoding="ascii").split()
        server = RunningServer(**json.loads((server_dir / ADDRESS_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    # The file of a server that was killed stays: it names another process, or the lock is free.
    return server if holder == [str(server.pid)] and is_in_use(server_dir) else None


def is_in_use(server_dir: Path) -> bool:
    """Returns whether a server holds the folder. Windows cannot tell: False. Raises OSError."""
    if not (server_dir / LOCK_FILE).exists():
        return False
    free = take_lock(server_dir / LOCK_FILE)
    if free is not None:
        os.close(free)
    return free is None

"""What a process has at a moment: memory, descriptors, threads, and what it has spent since it began."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "art.server": "server",
        "art.engine.builtin.worker": "engine",
        "art.training.worker": "trainer",
        "bench.soak.program": "client",
    }
)
"""Module of a command line -> name. The reaper has no module of its own."""
REAPER = "reaper"
OWN = ("RssAnon", "RssShmem", "VmSwap")
"""Of /proc/PID/status, in kB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """One process. memory: bytes of its own, without pages of files, which come and go with what else runs on
    the machine (elsewhere than on Linux: RSS). cpu: seconds. read, written: bytes through system calls, from
    files and connections alike.
    """

    memory: int
    descriptors: int
    threads: int
    cpu: float
    read: int = 0
    written: int = 0

    @classmethod
    def of(cls, process: psutil.Process) -> Usage:
        """Looks at a process. Raises psutil.Error where it has ended."""
        times = process.cpu_times()
        counters = process.io_counters() if hasattr(process, "io_counters") else None
        return cls(
            memory=_own_memory(process),
            descriptors=process.num_fds(),
            threads=process.num_threads(),
            cpu=times.user + times.system,
            read=getattr(counters, "read_chars", 0),
            written=getattr(counters, "write_chars", 0),
        )


def _own_memory(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return int(process.memory_info().rss)
    rows = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return 1024 * sum(int(rows[name].split()[0]) for name in OWN if name in rows)


def look_at_family(pid: int) -> dict[str, Usage]:
    """Returns the usage of a process and of all its descendants, by what they are; several of one kind, or
    of none, are numbered. Raises psutil.Error where the first has ended.
    """
    first = psutil.Process(pid)
    found: dict[str, Usage] = {}
    for process in [first, *first.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            name = kind = _kind(process.cmdline())
            count = 1
            while name in found:
                count += 1
                name = f"{kind} {count}"
            found[name] = Usage.of(process)
    return found


def _kind(command: list[str]) -> str:
    for part in reversed(command[:5]):
        if part in KINDS:
            return KINDS[part]
    return REAPER if any(part.endswith("reaper.py") for part in command) else "other"

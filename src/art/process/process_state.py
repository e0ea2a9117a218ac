"""What the system says of a process: that something has stopped it, or that it waits for a disk."""

from __future__ import annotations

import sys
from pathlib import Path


def is_stopped(pid: int) -> bool:
    """Returns whether a signal or a debugger has stopped it. False where the system does not tell."""
    return _state(pid) in ("T", "t")


def describe_state(pid: int) -> str:
    """`frozen`, with the reason, or what else is known of a process that does not answer."""
    if is_stopped(pid):
        return "frozen (stopped by a signal)"
    return "waiting for the disk" if _state(pid) == "D" else "not answering"


def _state(pid: int) -> str:
    """The letter of /proc/PID/stat, behind the name, which may hold anything."""
    if sys.platform != "linux":
        return "?"
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"

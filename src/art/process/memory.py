"""How a process that computes treats the memory it frees."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Tell glibc to reuse freed blocks: a forward pass frees and asks for the same megabytes again and again.

    Giving them back to the system in between made a pass over 3,000 tokens half as slow again (page faults).
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)

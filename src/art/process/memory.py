"""How a process that computes treats the memory it frees."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE_BLOCK = 1 << 20
"""Bytes. Below, a block is too small to be worth two calls of the system."""


def keep_freed_memory() -> None:
    """Tell glibc to reuse freed blocks: a forward pass frees and asks for the same megabytes again and again.

    Giving them back to the system in between made a pass over 3,000 tokens half as slow again (page faults).
    """
    _set_malloc(mmap_threshold=1 << 30)


def give_back_freed_memory() -> None:
    """Tell glibc to give every large block back at once: the process is as large as what it holds.

    Kept blocks fit the next request badly: a process that frees and computes its activations again held seven
    times what it needed. It costs a third more time.
    """
    _set_malloc(mmap_threshold=_LARGE_BLOCK)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _set_malloc(*, mmap_threshold: int) -> None:
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, mmap_threshold)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)

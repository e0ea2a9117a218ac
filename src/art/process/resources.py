"""What a process asks of its machine: sockets, open files, memory and the garbage collector.

The collector rests while a process loads: nothing of what it imports then is garbage, and looking
through it again and again takes a fifth of a worker's start.
"""

from __future__ import annotations

import ctypes
import gc
import socket
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


def listen(host: str, port: int, *, backlog: int = 256) -> socket.socket:
    """A socket that says it is TCP; port 0 takes a free one. Raises OSError when the address is taken.

    asyncio turns Nagle's delay (40 ms a reply) off only for sockets whose protocol is named, and
    `socket.create_server` leaves it unnamed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def find_free_tcp_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago. Who can should listen on port 0 instead: another program may be
    faster.
    """
    with listen(host, 0) as listener:
        port: int = listener.getsockname()[1]
    return port


def no_tls() -> ssl.SSLContext:
    """Returns a TLS context for a client of plain HTTP only. It trusts no certificate and loads none, which
    would block the event loop for 50 ms and more.
    """
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


ENOUGH_OPEN_FILES = 65_536
MORE_FILES = f"Raise the limit of open files: `ulimit -n {ENOUGH_OPEN_FILES}` in the shell that starts it"


def file_limit() -> int:
    """Returns how many files this process may hold open; a large number where there is no limit."""
    if sys.platform == "win32":
        return 1 << 30
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> int | None:
    """Raise the soft limit to the hard one, at most to `ENOUGH_OPEN_FILES`; returns the limit that holds.

    Shells begin with 1,024, or 256 on a Mac: fewer than a server's connections. None: there is no such limit.
    """
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):
        return soft  # a Mac allows less than its hard limit says
    return most


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE_BLOCK = 1 << 20
"""Bytes. Below, a block is too small to be worth two calls of the system."""


def keep_freed_memory() -> None:
    """Makes glibc reuse freed blocks: a forward pass frees and allocates the same megabytes again and again.

    Giving them back to the system in between made a pass over 3,000 tokens half as slow again (page faults).
    """
    _set_malloc(mmap_threshold=1 << 30)


def give_back_freed_memory() -> None:
    """Makes glibc return every large block at once: the process is only as large as its live data.

    Kept blocks fit the next request badly: a process that frees and computes its activations again held seven
    times what it needed. It costs a third more time.
    """
    _set_malloc(mmap_threshold=_LARGE_BLOCK)
    trim_memory()


def trim_memory() -> None:
    """Gives the system what glibc keeps of freed memory. Takes some 10 ms, without the interpreter's lock."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def trim_memory_in_thread() -> None:
    """`trim_memory`, without waiting for it."""
    threading.Thread(target=trim_memory, name="trim memory", daemon=True).start()


def _set_malloc(*, mmap_threshold: int) -> None:
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, mmap_threshold)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def pause_collector() -> None:
    """Pauses the garbage collector until `resume_collector`."""
    gc.disable()


def resume_collector() -> None:
    """Collect from now on. What is there already is never looked through again."""
    gc.freeze()
    gc.enable()

"""How many files and connections a process may have open."""

from __future__ import annotations

import sys

ENOUGH_OPEN_FILES = 65_536


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

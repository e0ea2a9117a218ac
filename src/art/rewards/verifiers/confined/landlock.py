"""Landlock: a process of Linux gives up rights over files, TCP and other processes, without any privilege."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable

from .kernel import check, libc

SYS_CREATE, SYS_ADD, SYS_RESTRICT = 444, 445, 446
VERSION = 1
EXECUTE, WRITE, READ, LIST = 1, 2, 4, 8
RIGHTS_OF = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many rights over files there are, since which version."""
TCP = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class _Rules(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def restrict(*, readable: Iterable[str], writable: Iterable[str], devices: Iterable[str]) -> int:
    """Leave only these: `writable` folders for everything, `readable` to read and execute, `devices` to read
    and write. From version 4, no TCP; from 6, no signals to others.

    Gives the version that the kernel has; 0: none, and nothing was restricted.
    """
    version = libc.syscall(SYS_CREATE, None, 0, VERSION)
    if version < 1:
        return 0
    everything = (1 << max(count for since, count in RIGHTS_OF.items() if version >= since)) - 1
    rules = _Rules(everything, TCP, ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = check(libc.syscall(SYS_CREATE, ctypes.byref(rules), size, 0), "landlock_create_ruleset")
    allowed = [(path, EXECUTE | READ | LIST) for path in readable]
    allowed += [(path, everything) for path in writable]
    allowed += [(path, READ | WRITE) for path in devices]
    for path, rights in allowed:
        with contextlib.suppress(FileNotFoundError):  # a system without that folder
            _allow(ruleset, path, rights)
    check(libc.syscall(SYS_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
    return int(version)


def _allow(ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    # Of a file, rights over folders cannot be given.
    rights = rights if os.path.isdir(path) else rights & (EXECUTE | WRITE | READ)
    beneath = _Beneath(rights, folder)
    check(libc.syscall(SYS_ADD, ruleset, 1, ctypes.byref(beneath), 0), f"landlock_add_rule {path}")
    os.close(folder)

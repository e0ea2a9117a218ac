"""Linux calls that Python 3.11 does not have, and whether the kernel ended a process for its CPU time."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUTS = 0x20000, 0x8000000, 0x4000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
CAPABILITY_VERSION_3 = 0x20080522
# These numbers are the same on every architecture; the older call below is not.
SYS_MOUNT_SETATTR = 442
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}.get(os.uname().machine, -1)

libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def check(result: int, what: str) -> int:
    """Raises OSError, naming the call, where it failed."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Replaces namespaces by new ones."""
    check(libc.unshare(flags), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    given = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    check(libc.mount(*given, ctypes.c_ulong(flags), data and data.encode()), f"mount {target}")


def set_mount(target: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes to a mount, and to those below it."""
    wanted = _MountAttributes(attr_set=attributes)
    flags = AT_RECURSIVE if recursive else 0
    done = libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), flags, ctypes.byref(wanted), ctypes.sizeof(wanted)
    )
    check(done, f"mount_setattr {target}")


def enter_root(folder: str) -> None:
    """Make `folder`, a mount, the root of this mount namespace; what was there before is out of reach."""
    os.chdir(folder)
    check(libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount the former root")
    os.chdir("/")


def forget_mount(folder: str) -> None:
    """Unmounts the place; does nothing if nothing was mounted there."""
    libc.umount2(os.fsencode(folder), MNT_DETACH)


def drop_capabilities() -> None:
    """Drops every privilege of this process permanently."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    set_process(PR_SET_NO_NEW_PRIVS, 1)


def set_process(option: int, value: int) -> None:
    """`prctl(option, value)`."""
    check(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def used_up_cpu(code: int, usage: Any, cpu_s: int) -> bool:
    """Returns whether a process was ended for its CPU time.

    SIGXCPU says so. The first process of a namespace gets SIGKILL instead; the kernel counts in ticks, so on
    a busy machine `usage` may say much less than the limit.
    """
    return code == -signal.SIGXCPU or (
        code == -signal.SIGKILL and usage.ru_utime + usage.ru_stime >= 0.5 * cpu_s
    )

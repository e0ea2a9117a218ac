"""The isolation of a limited process, of what the kernel has: namespaces, else Landlock.

With namespaces it sees a root of its own that holds the interpreter and the system's libraries, read-only,
and one small folder in memory; no network device; no process but its own, which all die with its first one.
There is no `/proc`. Where only the root is refused, as on some desktops, Landlock stands in for it: a process
gives up rights over files, TCP and other processes, without any privilege.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable

from . import kernel
from .kernel import check, libc

SYS_CREATE, SYS_ADD, SYS_RESTRICT = 444, 445, 446
VERSION_QUERY = 1
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


def restrict_by_landlock(*, readable: Iterable[str], writable: Iterable[str], devices: Iterable[str]) -> int:
    """Restricts access to these: `writable` folders for everything, `readable` to read and execute, `devices`
    to read and write. From version 4, no TCP; from 6, no signals to others.

    Gives the version that the kernel has; 0: none, and nothing was restricted.
    """
    version = libc.syscall(SYS_CREATE, None, 0, VERSION_QUERY)
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


NOBODY = 65534
SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
FOLDER = "/box"
"""The working folder of a process behind namespaces."""


class BuiltIsolation:
    """The isolation in effect, and its means."""

    def __init__(self) -> None:
        self.files = self.network = self.processes = ""
        self.refused = ""
        """What the kernel did not allow."""
        self.others = 0
        """Processes that count beside ours where the limit on them holds for the user as a whole."""

    def report(self) -> dict[str, str]:
        """Returns the means that block files, network and other processes; "" if they are open."""
        return {
            "files": self.files,
            "network": self.network,
            "processes": self.processes,
            "refused": self.refused,
        }


def leave_namespaces(walls: BuiltIsolation) -> None:
    """Runs in the supervisor before it forks: the child will be the first process of new namespaces."""
    if sys.platform != "linux":
        walls.refused = f"{sys.platform} has none"
        return
    wanted = kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    user, group = os.getuid(), os.getgid()
    try:
        # Root needs no user namespace here: it has the privilege, and takes another user later.
        kernel.unshare(wanted if user == 0 else wanted | kernel.CLONE_NEWUSER)
        walls.network = walls.processes = "namespace"
        if user != 0:
            walls.others = 1  # the supervisor is of the same user and namespace
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{user} {user} 1")
            _write("/proc/self/gid_map", f"{group} {group} 1")
    except OSError as error:
        walls.refused = str(error)


def isolate(walls: BuiltIsolation, *, base: str, readable: list[str], disk_bytes: int) -> str:
    """Runs in the child, before it reads any input. Returns the folder it may write to.

    base: an empty folder that this process may use.
    """
    if sys.platform != "linux":
        return base
    supervisor = os.getppid()
    folder, seen = base, [*SYSTEM, *readable]
    if _enter_own_root(walls, base, readable, disk_bytes):
        folder, seen = FOLDER, ["/"]
        walls.files = "namespace"
    else:
        if os.getuid() == 0:
            _become_nobody(base)
        kernel.drop_capabilities()
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        walls.others = _tasks_of(os.getuid(), proc)
        os.close(proc)
    # After the change of user, which would undo it.
    kernel.set_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)
    version = restrict_by_landlock(readable=seen, writable=[folder], devices=DEVICES)
    walls.files = walls.files or ("landlock" if version else "")
    walls.network = walls.network or ("landlock (TCP only)" if version >= 4 else "")
    walls.processes = walls.processes or ("landlock" if version >= 6 else "")
    return folder


def _enter_own_root(walls: BuiltIsolation, base: str, readable: list[str], disk_bytes: int) -> bool:
    """Returns whether it could be done. If not, nothing has changed that this process could see."""
    if walls.processes != "namespace":
        return False
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    except OSError as error:
        walls.refused = str(error)
        return False
    try:
        _build_root(base, readable, disk_bytes)
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        kernel.enter_root(base)
    except OSError as error:
        walls.refused = str(error)
        kernel.forget_mount(base)
        return False
    if os.getuid() == 0 and _become_nobody():
        try:
            kernel.unshare(
                kernel.CLONE_NEWUSER
            )  # processes are counted here alone, not with others of the user
        except OSError:
            walls.others = _tasks_of(NOBODY, proc)
    with contextlib.suppress(OSError):  # a second lock on what Landlock and the lack of privileges close
        number = os.open("sys/user/max_user_namespaces", os.O_WRONLY, dir_fd=proc)
        os.write(number, b"0")
        os.close(number)
    os.close(proc)
    kernel.drop_capabilities()
    return True


def _build_root(base: str, readable: list[str], disk_bytes: int) -> None:
    inert = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", base, "tmpfs", inert, "mode=755,size=1m")
    for path in [*SYSTEM, *readable]:
        _show(path, base)
    for path in DEVICES:
        _bind(path, base + path)
    os.mkdir(base + FOLDER)
    size = f"mode=1777,size={disk_bytes},nr_inodes=4096"
    kernel.mount("tmpfs", base + FOLDER, "tmpfs", inert, size)
    if not os.path.lexists(base + "/tmp"):  # an interpreter may live there
        os.symlink(FOLDER, base + "/tmp")
    kernel.set_mount(base, kernel.MOUNT_ATTR_RDONLY, recursive=False)


def _show(path: str, base: str) -> None:
    """A path of the system, read-only, at its place in the new root."""
    if os.path.islink(path):
        os.symlink(os.readlink(path), base + path)
    elif os.path.lexists(path) and not os.path.lexists(base + path):
        _bind(path, base + path)
        inert = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
        kernel.set_mount(base + path, inert, recursive=True)


def _bind(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)


def _become_nobody(base: str | None = None) -> bool:
    """Root gives itself up, where it may and where the new user can read the interpreter. base: the folder
    that the new user will need.
    """
    try:
        os.seteuid(NOBODY)
        os.listdir(os.path.dirname(os.__file__))
    except OSError:
        return False
    finally:
        os.seteuid(0)
    try:
        if base is not None:
            os.chown(base, NOBODY, NOBODY)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:
        return False  # root of a container that may not do this
    return True


def _tasks_of(user: int, proc: int) -> int:
    """Processes and threads of a user; proc: a descriptor of `/proc`."""
    count = 0
    for name in filter(str.isdecimal, os.listdir(proc)):
        with contextlib.suppress(OSError):  # it has ended
            if os.stat(name, dir_fd=proc).st_uid == user:
                threads = os.open(f"{name}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
                count += len(os.listdir(threads))
                os.close(threads)
    return count


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)

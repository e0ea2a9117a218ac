"""Files that survive a kill and a power cut: written whole, locked, and what a full or failing disk did;
folders that go with their process, and the log of a child process.

What ART keeps (prompts, keys, weights) is for the user alone who runs it: `make_private_folder`,
`private_opener` and `create_private` make it so from the first byte on, whatever the process's umask.
A lock is dropped by the kernel when its holder dies. An error names the file, the cause and what to do.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from art.errors import DiskError

if TYPE_CHECKING:
    import asyncio


PRIVATE = 0o600
"""The permissions of a file of this user alone; those of a folder are 0700."""
_OTHERS = 0o077


def make_private_folder(path: Path) -> None:
    """Makes a folder, and parents that are missing, for this user alone. Those that are there stay as they
    are. Raises OSError.
    """
    for missing in reversed([one for one in path.parents if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """The `opener` for `open`: a new file is of this user alone."""
    return os.open(path, flags, PRIVATE)


def create_private(path: Path) -> None:
    """Makes an empty file of this user alone, and its folder. What is there keeps its permissions.

    SQLite gives its further files (-wal, -shm) the permissions of the first.
    """
    make_private_folder(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE))


def is_open_to_all(path: Path) -> bool:
    """Returns whether every user of the machine may read it, as files of earlier releases of ART."""
    return os.name == "posix" and bool(path.stat().st_mode & stat.S_IROTH)


def close_to_others(path: Path) -> None:
    """Takes the permissions of other users from a file or folder of this user."""
    if os.name != "posix":
        return
    found = path.stat()
    if found.st_mode & _OTHERS and found.st_uid == os.getuid():
        path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def flush(path: Path) -> None:
    """Flushes a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_flushed(path: Path, content: str | bytes) -> None:
    """Write a file that does not exist, to the disk; texts in UTF-8. Raises FileExistsError."""
    _write(path, content, mode=PRIVATE, durable=True)


def write_whole(path: Path, content: str | bytes, *, mode: int = PRIVATE, durable: bool = True) -> None:
    """Write or replace a file; its folder is made. A reader, or a kill, meets the old file or the new one.

    mode: its permissions from its first byte on, less the process's umask; a new folder is as private as the
    file. durable: a power cut after the
    return does not lose it, for two waits for the disk. Texts are written in UTF-8.
    """
    _make_folder(path.parent, mode)
    with _fresh_file_beside(path) as fresh:
        _write(fresh, content, mode=mode, durable=durable)
        fresh.replace(path)
    if durable and os.name != "nt":  # Windows opens no folders
        flush(path.parent)


def write_first(path: Path, content: str | bytes, *, mode: int = PRIVATE) -> bool:
    """Write a file unless there is one; its folder is made. Whole or not at all, to the disk.

    Of several that write at once one is first: the others return False, and leave its file as it is.
    """
    _make_folder(path.parent, mode)
    with _fresh_file_beside(path) as fresh:
        _write(fresh, content, mode=mode, durable=True)
        try:
            os.link(fresh, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if path.exists():
                return False
            fresh.replace(path)
    if os.name != "nt":
        flush(path.parent)
    return True


def find_named(folder: Path, prefix: str, suffix: str = "") -> list[Path]:
    """Returns what lies in a folder under such names, sorted; nothing where there is no folder. Python keeps
    the pattern of each glob: of a name that holds a step this does not.
    """
    names = os.listdir(folder) if folder.is_dir() else []
    return [folder / name for name in sorted(names) if name.startswith(prefix) and name.endswith(suffix)]


@contextmanager
def open_whole(path: Path) -> Iterator[IO[str]]:
    """Opens a text file that takes the place of `path` when the block ends without an error."""
    make_private_folder(path.parent)
    with _fresh_file_beside(path) as fresh:
        with open(fresh, "x", encoding="utf-8", newline="\n", opener=private_opener) as file:
            yield file
        fresh.replace(path)


def _make_folder(path: Path, mode: int) -> None:
    if mode & _OTHERS:
        path.mkdir(parents=True, exist_ok=True)
    else:
        make_private_folder(path)


@contextmanager
def _fresh_file_beside(path: Path) -> Iterator[Path]:
    """A fresh name beside the file, which is free again afterwards."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        yield fresh
    finally:
        with suppress(OSError):  # an error on the way is the one to tell
            fresh.unlink(missing_ok=True)


def _write(path: Path, content: str | bytes, *, mode: int, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if durable:
            file.flush()
            os.fsync(file.fileno())


_PAUSE_SECONDS = 0.01


def take_lock(path: Path, *, patience: float = 0.0, shared: bool = False) -> int | None:
    """The descriptor that holds the lock; closing it lets go. None when another one kept it for too long.

    path: made if it is not there. patience: seconds to wait for another process or thread.
    shared: several may hold it so at once, and nobody else meanwhile.
    Where files have no such lock (Windows) it is always had: one program needs none.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE)
    deadline = time.monotonic() + patience
    try:
        while not _try_lock(descriptor, shared):
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(_PAUSE_SECONDS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _try_lock(descriptor: int, shared: bool) -> bool:
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_HOLDER = ".holder"
_YOUNG_S = 60.0
"""Seconds. A folder so young may be one whose maker has not locked it yet."""


class ScratchFolder:
    """A new folder for temporary files, private to this user: `path`, in the system's place for them.

    A process that is killed leaves its own behind: it goes when the next of that name is made.
    """

    def __init__(self, name: str, place: Path | None = None) -> None:
        place = place or Path(tempfile.gettempdir())
        for left in place.glob(f"{name}-*"):
            _remove_without_holder(left)
        self.path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
        self._lock = take_lock(self.path / _HOLDER)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _remove_without_holder(folder: Path) -> None:
    """Removes a scratch folder of this user whose process has ended."""
    if os.name != "posix":  # no lock tells who lives
        return
    with suppress(OSError):  # another one removes it, or it is another user's
        made = (folder / _HOLDER).lstat()
        if made.st_uid != os.getuid() or time.time() - made.st_mtime < _YOUNG_S:
            return
        if (lock := take_lock(folder / _HOLDER)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_CLOSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_SQLITE_FULL, _SQLITE_IO, _SQLITE_PERM, _SQLITE_READ_ONLY, _SQLITE_CANNOT_OPEN = 13, 10, 3, 8, 14
_SCARCE = 1 << 20
"""Bytes. With fewer left, an I/O error that names no cause has this one."""


def disk_trouble(error: BaseException, path: Path) -> str | None:
    """Returns the disk error at the place of `path`, with the remedy. None: the error has another cause.

    error: an OSError, a sqlite3.Error, or what a library made of one. None of these harms what is stored.
    """
    number = getattr(error, "errno", None)
    # The lowest byte is the kind; what is above says where it happened.
    kind = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    free = free_bytes(path)
    scarce = free is not None and free < _SCARCE
    if number in _FULL or kind == _SQLITE_FULL or _says_disk_full(error) or (kind == _SQLITE_IO and scarce):
        left = "" if free is None else f", {free:,} bytes free"
        return f"the disk is full: {path}{left}. Free space and try again; what was stored is kept"
    if number in _CLOSED or kind in {_SQLITE_PERM, _SQLITE_READ_ONLY, _SQLITE_CANNOT_OPEN}:
        return (
            f"{path} cannot be written ({_reason(error)}): check who owns the folder, its permissions, and "
            "whether it is mounted read-only, or choose another folder"
        )
    if number == errno.EIO or kind == _SQLITE_IO:
        return (
            f"the disk fails at {path} ({_reason(error)}): look at the system's log, and keep a copy of the "
            "folder before anything else"
        )
    return None


def disk_error(error: BaseException, path: Path, what: str) -> DiskError:
    """`what` failed, and why."""
    return DiskError(f"{what}: {disk_trouble(error, path) or f'{path}: {_reason(error)}'}")


def free_bytes(path: Path) -> int | None:
    """Returns the free bytes of the file system that holds the path, or its first existing parent folder;
    None: unknown.
    """
    if not hasattr(os, "statvfs"):
        return None
    for place in (path, *path.parents):
        try:
            found = os.statvfs(place)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return None


def _says_disk_full(error: BaseException) -> bool:
    """Libraries that are not Python's own (safetensors) keep the words and lose the number."""
    return os.strerror(errno.ENOSPC) in str(error)


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


_TAIL_LINES = 40


class WorkerLog:
    """The log of a child process: appends to `path`; at `limit` bytes the file becomes `path` + `.1` and a
    new one begins.
    """

    def __init__(self, path: Path, *, limit: int = 2_000_000) -> None:
        self.path = path
        self._limit = limit
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        make_private_folder(path.parent)
        self._file = self._open()

    def write(self, data: bytes) -> None:
        self._tail.extend(data.decode(errors="replace").splitlines())
        self._file.write(data)
        self._file.flush()
        if self._file.tell() >= self._limit:
            self._file.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._file = self._open()

    def _open(self) -> IO[bytes]:
        return open(self.path, "ab", opener=private_opener)

    def tail(self, lines: int = 12) -> str:
        """The last lines, for a message."""
        return "\n".join(list(self._tail)[-lines:])

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Copy a pipe until its end. Read in pieces: one endless line must not stop the copy."""
        while data := await stream.read(65536):
            self.write(data)

    def close(self) -> None:
        self._file.close()

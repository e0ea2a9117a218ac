"""What a folder holds, in one digest: the name, the size and the sha256 of each file.

    {"files":{"adapter_config.json":{"sha256":"9f2c...","size":412},"sub/a.bin":{"sha256":"...","size":0}}}

These bytes (sorted, without spaces, UTF-8) are the canonical manifest, and their sha256 is the folder's
digest. Empty folders, times and permissions do not count. A manifest that comes from another machine is
checked before anything is written: it may not choose where.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Collection
from pathlib import Path

from pydantic import ValidationError

from art.errors import StorageError
from art.wire.models import Manifest, ManifestEntry, manifest_entry
from art.wire.records import first_flaw

MOST_FILES = 10_000
MOST_MANIFEST_BYTES = 4 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_PART, _LONGEST_NAME = 255, 1024
"""The most bytes that file systems take, of a part of a path and of the whole."""
_SETTLED_NS = 200_000_000
"""Nanoseconds since a file's last change within which a further one may leave the same time."""


def canonical_json(manifest: Manifest) -> bytes:
    """Returns the bytes whose sha256 is the folder's digest."""
    text = json.dumps(manifest.model_dump(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def digest_of_manifest(manifest: Manifest) -> str:
    """Returns the digest of the folder that the manifest describes."""
    return hashlib.sha256(canonical_json(manifest)).hexdigest()


def total_bytes(manifest: Manifest) -> int:
    """Returns the size of all files together."""
    return sum(entry.size for entry in manifest.files.values())


def check_digest(digest: str) -> None:
    """Raises StorageError for what is no sha256 in hexadecimal digits: it becomes part of a path."""
    if not _DIGEST.fullmatch(digest):
        raise StorageError(f"{digest!r:.100} is no digest: it has 64 hexadecimal digits")


def check_manifest(manifest: Manifest) -> None:
    """Raises StorageError for a manifest that describes no plain folder of files."""
    if not 0 < len(manifest.files) <= MOST_FILES:
        raise StorageError(f"the manifest names {len(manifest.files)} files; it may name 1 to {MOST_FILES}")
    folders = {name[:at] for name in manifest.files for at, mark in enumerate(name) if mark == "/"}
    for name, entry in manifest.files.items():
        if not _stays_beneath(name) or name in folders:
            raise StorageError(f"the manifest names a file {name!r:.200}, which is no path in a folder")
        if not _DIGEST.fullmatch(entry.sha256) or entry.size < 0:
            raise StorageError(f"the manifest says that {name!r:.200} has an impossible digest or size")


def _stays_beneath(name: str) -> bool:
    try:
        parts = [(part, len(part.encode())) for part in name.split("/")]
    except UnicodeEncodeError:
        return False
    return sum(length + 1 for _, length in parts) <= _LONGEST_NAME and all(
        part not in ("", ".", "..") and "\\" not in part and "\0" not in part and length <= _LONGEST_PART
        for part, length in parts
    )


def read_manifest(content: bytes, digest: str) -> Manifest:
    """The manifest of this digest, from wherever. Raises StorageError that says what is wrong with it."""
    if len(content) > MOST_MANIFEST_BYTES:
        raise StorageError(f"the manifest has {len(content)} bytes; at most {MOST_MANIFEST_BYTES} are read")
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise StorageError(f"the manifest cannot be read: {first_flaw(error).without_value}") from error
    check_manifest(manifest)
    if (found := digest_of_manifest(manifest)) != digest:
        raise StorageError(f"the manifest has the digest {found}, not {digest}")
    return manifest


def list_files(folder: Path, *, follow_links: bool = False) -> dict[str, Path]:
    """Name -> path of each file below the folder, sorted by name.

    follow_links: a link to a file counts as that file, as in the hub's cache. Links to folders never count.
    Raises StorageError for a link, a socket or another thing that is no plain file, and for a missing folder.
    """
    if not folder.is_dir():
        raise StorageError(f"{folder} is no folder")
    found: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in [*folders, *names]):
            kind = (path.stat() if follow_links else path.lstat()).st_mode
            if stat.S_ISDIR(kind) and not path.is_symlink():
                continue
            if not stat.S_ISREG(kind):
                raise StorageError(f"{path} is no plain file: remove it, or put a copy in its place")
            found[path.relative_to(folder).as_posix()] = path
    return dict(sorted(found.items()))


FileIdentity = tuple[int, int, int, int]


def file_identity(path: Path) -> FileIdentity:
    """Returns what changes when a file is written or replaced, and stays when it is renamed or linked."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class FileDigests:
    """The entries of files, each read once for as long as it stays the same. Threads may share it."""

    def __init__(self, most: int = 65_536) -> None:
        self._known: dict[FileIdentity, ManifestEntry] = {}
        self._most = most

    def manifest(
        self, folder: Path, *, follow_links: bool = False, without: Collection[str] = ()
    ) -> Manifest:
        """The folder's manifest, as if the files `without` were not there. Raises StorageError, OSError."""
        files = list_files(folder, follow_links=follow_links)
        manifest = Manifest(
            files={name: self._entry(path) for name, path in files.items() if name not in without}
        )
        check_manifest(manifest)
        return manifest

    def remember(self, path: Path, entry: ManifestEntry) -> None:
        """A file that was just written with this content."""
        while len(self._known) >= self._most:
            self._known.pop(next(iter(self._known)), None)
        self._known[file_identity(path)] = entry

    def _entry(self, path: Path) -> ManifestEntry:
        before = file_identity(path)
        if (known := self._known.get(before)) is not None:
            return known
        entry = manifest_entry(path)
        if file_identity(path) == before and time.time_ns() - before[3] > _SETTLED_NS:
            self.remember(path, entry)
        return entry


def find_damage(folder: Path, manifest: Manifest) -> str | None:
    """Returns what differs between a folder and its manifest, read to the last byte; None: nothing."""
    try:
        files = list_files(folder)
        if files.keys() != manifest.files.keys():
            return (
                f"its files are not those of the manifest: {sorted(files.keys() ^ manifest.files.keys())[:3]}"
            )
        for name, path in files.items():
            if path.stat().st_size != manifest.files[name].size:
                return f"{name} has {path.stat().st_size} bytes, not {manifest.files[name].size}"
        for name, path in files.items():
            if manifest_entry(path) != manifest.files[name]:
                return f"{name} has another sha256"
    except (OSError, StorageError) as error:
        return str(error)
    return None


def open_beneath(folder: Path, name: str, *, follow_links: bool = False) -> int:
    """Opens a file of a manifest for reading and returns its descriptor: no link on the way leads elsewhere.

    follow_links: the last part of the name may be a link. Raises OSError.
    """
    plain = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not stop whoever opens it
    *parents, last = name.split("/")
    at = os.open(folder, plain | os.O_DIRECTORY)
    try:
        for part in parents:
            below = os.open(part, plain | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        return os.open(last, plain | (0 if follow_links else os.O_NOFOLLOW), dir_fd=at)
    finally:
        os.close(at)

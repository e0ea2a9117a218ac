"""The copies of a shelf on its disk, and who uses them: whole or absent, never damaged, the oldest evicted.

    copies/{digest}/manifest.json       a copy: complete, on disk, there after one rename
    copies/{digest}/files/...
    arriving/{digest}/...               the same, while it is fetched; a killed fetch goes on from it
    locks/{digest}.fetch                held by the process that fetches or removes
    locks/{digest}.use                  shared by those who use it; the kernel drops it with its process
    written/{process}/...               what the workers of one process write here
    doomed/...                          being removed

Several processes of a node share the folder. All methods block: call them in a thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from art.errors import DiskError, StorageError
from art.process.files import disk_error, flush, free_bytes, take_lock, write_whole
from art.wire.models import MANIFEST_FILE, Manifest
from art_extensions.cluster.folder_manifest import (
    FileDigests,
    FileIdentity,
    canonical_json,
    digest_of_manifest,
    file_identity,
    find_damage,
    list_files,
    read_manifest,
    total_bytes,
)

_log = logging.getLogger(__name__)
_ROOM_PATIENCE_S = 120.0
"""Seconds to wait for another process that removes old copies."""
_READ_ONLY = 0o444
"""The mode of a copy's files: nothing writes into them by mistake."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyOnDisk:
    """One copy, or one that arrives."""

    digest: str
    place: Path
    manifest: Manifest
    size: int
    """Bytes that it has, or will have."""
    last_use: float
    """Seconds since 1970."""


class FolderCopies:
    """The folder of a shelf. `limit_bytes` holds for the copies and for those that arrive, together."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.digests = FileDigests()
        self._verified: dict[str, dict[str, FileIdentity]] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("copies", "arriving", "locks", "written", "doomed"):
            (folder / name).mkdir(exist_ok=True, mode=0o700)
        self.written, self._written_lock = self._own_written()
        self._sweep()

    def close(self) -> None:
        """Gives up what the workers of this process wrote and nobody collected."""
        if self._written_lock is not None:
            shutil.rmtree(self.written, ignore_errors=True)
            os.close(self._written_lock)
            self._written_lock = None

    # -- one copy --

    def files(self, digest: str) -> Path:
        """Returns the place of a copy's files, whether it is there or not."""
        return self.folder / "copies" / digest / "files"

    def verified(self, digest: str) -> Manifest | None:
        """Returns the manifest of a whole copy: its files were read by this process, and are unchanged since.

        The caller uses the copy (`try_pin`). None: there is none, or it is damaged, and `begin` removes it.
        """
        place = self.folder / "copies" / digest
        if not place.exists():
            return None
        try:
            manifest = read_manifest((place / MANIFEST_FILE).read_bytes(), digest)
            identities = {name: file_identity(path) for name, path in list_files(place / "files").items()}
        except (OSError, StorageError):
            return None
        if self._verified.get(digest) != identities:
            if (damage := find_damage(place / "files", manifest)) is not None:
                _log.warning("the copy %s is damaged: %s", place, damage)
                return None
            self._verified[digest] = identities
        with contextlib.suppress(OSError):  # evicted meanwhile by a process that found no user
            os.utime(place)
        return manifest

    def begin(self, digest: str, manifest: Manifest, *, on_this_disk: bool = False) -> Path:
        """Makes room for a copy and returns the folder for its files, with those of a fetch that was cut off.

        The caller holds the lock of the fetch. on_this_disk: the files are moved and need no more of the
        disk. Raises DiskError when the limit or the disk leaves no room.
        """
        place = self.folder / "arriving" / digest
        try:
            self._remove(self.folder / "copies" / digest)
            with self._room():
                self._make_room(digest, total_bytes(manifest), on_this_disk)
                write_whole(place / MANIFEST_FILE, canonical_json(manifest))
            (place / "files").mkdir(exist_ok=True)
            for name, path in list_files(place / "files").items():
                if name not in manifest.files:
                    path.unlink()
            for parent in {(place / "files" / name).parent for name in manifest.files}:
                parent.mkdir(parents=True, exist_ok=True)
        except StorageError:  # something that is no file of ours
            shutil.rmtree(place)
            return self.begin(digest, manifest, on_this_disk=on_this_disk)
        except OSError as error:
            raise error if isinstance(error, DiskError) else self.give_up(digest, error) from error
        return place / "files"

    def finish(self, digest: str) -> Path:
        """Makes the arrived files the copy; they were checked and are on disk. Raises DiskError."""
        place, target = self.folder / "arriving" / digest, self.folder / "copies" / digest
        try:
            folders = {path.parent for path in list_files(place / "files").values()}
            for folder in sorted({*folders, place / "files", place}, reverse=True):
                flush(folder)
            for path in list_files(place / "files").values():
                path.chmod(_READ_ONLY)
            place.rename(target)
            flush(target.parent)
        except OSError as error:
            raise self.give_up(digest, error) from error
        paths = list_files(target / "files")
        self._verified[digest] = {name: file_identity(path) for name, path in paths.items()}
        return target / "files"

    def link_same_files(self, digest: str, manifest: Manifest) -> None:
        """Takes the files that another copy here has, too: an adapter that comes with other files once more.

        Whoever pulls reads them first. Raises OSError.
        """
        wanted = {entry.sha256 for entry in manifest.files.values()}
        places: dict[str, Path] = {}
        for one in self.list_copies():
            if one.place.parent.name == "copies" and one.digest != digest:
                for name, entry in one.manifest.files.items():
                    if entry.sha256 in wanted:
                        places[entry.sha256] = one.place / "files" / name
        for name, entry in manifest.files.items():
            target, source = self.folder / "arriving" / digest / "files" / name, places.get(entry.sha256)
            if source is None or target.exists():
                continue
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                os.link(source, target, follow_symlinks=False)

    def give_up(self, digest: str, error: OSError) -> DiskError:
        """Removes what arrived, which may use the space that the disk lacks; returns the error to raise."""
        place = self.folder / "arriving" / digest
        failure = disk_error(error, place, f"the copy {digest[:12]} could not be written")
        self._remove(place)
        return failure

    def adopt(self, folder: Path) -> str:
        """Moves a folder that a worker wrote in `written` to the copies; returns its digest.

        Raises StorageError for a folder elsewhere, or one with links; DiskError.
        """
        if folder.parent != self.written or not folder.is_dir() or folder.is_symlink():
            raise StorageError(f"{folder} is no folder that a worker wrote in {self.written}")
        manifest = self.digests.manifest(folder)
        digest = digest_of_manifest(manifest)
        for path in list_files(folder).values():
            flush(path)
        with self.fetching(digest, _ROOM_PATIENCE_S):
            if self.verified(digest) is not None:
                shutil.rmtree(folder)
                return digest
            files = self.begin(digest, manifest, on_this_disk=True)
            shutil.rmtree(files)
            folder.rename(files)
            self.finish(digest)
        return digest

    # -- locks --

    def try_pin(self, digest: str) -> int | None:
        """Returns a descriptor: until it is closed, no process evicts this copy. None: one does just now."""
        return self._lock(self._use_lock(digest), shared=True)

    def try_fetch_lock(self, digest: str) -> int | None:
        """Returns the descriptor of the lock of the process that fetches a copy; None: another one does."""
        return self._lock(self._fetch_lock(digest))

    @contextlib.contextmanager
    def fetching(self, digest: str, patience: float) -> Iterator[None]:
        """Holds that lock in a block. Raises DiskError after `patience` seconds."""
        descriptor = self._lock(self._fetch_lock(digest), patience=patience)
        if descriptor is None:
            raise DiskError(f"another process has held {self._fetch_lock(digest)} for {patience:g} s: end it")
        try:
            yield
        finally:
            os.close(descriptor)

    def _use_lock(self, digest: str) -> Path:
        return self.folder / "locks" / f"{digest}.use"

    def _fetch_lock(self, digest: str) -> Path:
        return self.folder / "locks" / f"{digest}.fetch"

    def _lock(self, path: Path, *, shared: bool = False, patience: float = 0.0) -> int | None:
        """A lock whose file may be removed by whoever holds it: what is held is the file that is there."""
        while True:
            try:
                descriptor = take_lock(path, shared=shared, patience=patience)
            except OSError as error:
                raise disk_error(error, path, "the shelf could not be locked") from error
            if descriptor is None:
                return None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
            os.close(descriptor)

    # -- room --

    def list_copies(self) -> list[CopyOnDisk]:
        """All that is here or arrives, what was used least recently first."""
        found = []
        for place in [*(self.folder / "copies").iterdir(), *(self.folder / "arriving").iterdir()]:
            with contextlib.suppress(OSError, StorageError):  # removed meanwhile, or without a manifest yet
                manifest = read_manifest((place / MANIFEST_FILE).read_bytes(), place.name)
                last_use = place.stat().st_mtime
                found.append(
                    CopyOnDisk(
                        digest=place.name,
                        place=place,
                        manifest=manifest,
                        size=total_bytes(manifest),
                        last_use=last_use,
                    )
                )
        return sorted(found, key=lambda one: one.last_use)

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        descriptor = self._lock(self.folder / "locks" / "room", patience=_ROOM_PATIENCE_S)
        if descriptor is None:
            raise DiskError(
                f"another process has made room in {self.folder} for {_ROOM_PATIENCE_S:g} s: end it"
            )
        try:
            yield
        finally:
            os.close(descriptor)

    def _make_room(self, digest: str, size: int, on_this_disk: bool) -> None:
        """Evicts until `size` more bytes fit. The copy that arrives counts as not there."""
        if size > self.limit_bytes:
            raise DiskError(
                f"the folder {digest[:12]} has {size:,} bytes, the shelf {self.folder} takes "
                f"{self.limit_bytes:,}: raise its limit"
            )
        others = [one for one in self.list_copies() if one.digest != digest]
        total = sum(one.size for one in others)
        missing = 0 if on_this_disk else size - _bytes_below(self.folder / "arriving" / digest)
        for one in others:
            if total + size <= self.limit_bytes and self._has_free(missing):
                return
            if self._evict(one):
                total -= one.size
        if total + size > self.limit_bytes:
            raise DiskError(
                f"the shelf {self.folder} has no room for {size:,} bytes: {total:,} of its "
                f"{self.limit_bytes:,} are in use. Raise its limit"
            )
        if not self._has_free(missing):
            raise DiskError(
                f"the disk is full: {self.folder} needs {missing:,} bytes and has "
                f"{free_bytes(self.folder) or 0:,} free. Free space and try again; what was stored is kept"
            )

    def _has_free(self, size: int) -> bool:
        free = free_bytes(self.folder)
        return free is None or free >= size

    def _evict(self, one: CopyOnDisk) -> bool:
        """Returns whether nobody used or fetched it, so that it is gone."""
        locks = [self._use_lock(one.digest), self._fetch_lock(one.digest)]
        descriptors = [self._lock(path) for path in locks]
        try:
            if None in descriptors:
                return False
            self._remove(one.place)
            for path in locks:  # those who wait for them take new ones
                path.unlink(missing_ok=True)
            return True
        finally:
            for descriptor in descriptors:
                if descriptor is not None:
                    os.close(descriptor)

    def _remove(self, place: Path) -> None:
        """A copy disappears in one move. Whoever has its files open keeps them."""
        self._verified.pop(place.name, None)
        doomed = self.folder / "doomed" / secrets.token_hex(8)
        with contextlib.suppress(FileNotFoundError):
            place.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _own_written(self) -> tuple[Path, int | None]:
        path = self.folder / "written" / f"p{secrets.token_hex(8)}"
        lock = self._lock(path.with_suffix(".lock"))
        path.mkdir(mode=0o700)
        return path, lock

    def _sweep(self) -> None:
        """Removes what killed processes left."""
        for path in (self.folder / "doomed").iterdir():
            shutil.rmtree(path, ignore_errors=True)
        for lock in (self.folder / "written").glob("*.lock"):
            descriptor = self._lock(lock)
            if descriptor is not None:
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
                os.close(descriptor)


def _bytes_below(folder: Path) -> int:
    if not folder.exists():
        return 0
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())

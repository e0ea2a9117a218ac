"""The shelf of one node: a verified copy of each folder that it was asked for, fetched once, by content.

    digest = await server_shelf.offer(folder)               # on the machine that has it
    path = await node_shelf.fetch(digest, sources)          # on the machine that wants it

Of several that ask for one digest, in this process or another one of the node, one fetches; the others get
its copy. A copy is read to its last byte before this process gives it out for the first time. One that was
given out stays for `keep_s` seconds at least, and as long as a block of `using` runs. Then the one that was
used least recently makes room for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from art.errors import DeadlineError, NotFoundError, StorageError
from art.process.files import disk_error, flush
from art.wire.models import MANIFEST_FILE, Manifest, ManifestEntry
from art_extensions.cluster.folder_copies import CopyOnDisk, FolderCopies
from art_extensions.cluster.folder_manifest import (
    canonical_json,
    check_digest,
    digest_of_manifest,
    open_beneath,
)
from art_extensions.cluster.sources import FilePuller, PullLimits, Source, open_bucket, run_to_end

_log = logging.getLogger(__name__)
_MOST_OFFERS = 1024
_LOCK_PAUSE_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class _Offer:
    """A folder that is handed out from where it is."""

    folder: Path
    manifest: Manifest
    follow_links: bool


async def _lock_when_free(try_lock: Callable[[str], int | None], digest: str) -> int:
    """The descriptor of a lock that another process gives back; the caller sets the deadline."""
    while True:
        if (descriptor := try_lock(digest)) is not None:
            return descriptor
        await asyncio.sleep(_LOCK_PAUSE_S)


def _make_folders(folder: Path, manifest: Manifest) -> None:
    for parent in {(folder / name).parent for name in manifest.files}:
        parent.mkdir(parents=True, exist_ok=True)


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


class Shelf:
    """The copies below `folder`, at most `limit_bytes` together. One event loop owns it. Close it."""

    def __init__(
        self, folder: Path, limit_bytes: int, *, limits: PullLimits | None = None, keep_s: float = 900.0
    ) -> None:
        """keep_s: longer than a worker takes to load what it was given."""
        self.copies = FolderCopies(folder, limit_bytes)
        self._limits = limits or PullLimits()
        self._keep_s = keep_s
        self._offers: OrderedDict[str, _Offer] = OrderedDict()
        self._flights: dict[str, asyncio.Task[Path]] = {}
        self._pins: dict[str, tuple[int, float]] = {}
        self._adopted: dict[Path, str] = {}

    async def close(self) -> None:
        """Ends what is being fetched; a later shelf goes on from there."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        if flights:
            await asyncio.wait(flights, timeout=10.0)
        for descriptor, _ in self._pins.values():
            os.close(descriptor)
        self._pins.clear()
        await asyncio.to_thread(self.copies.close)

    # -- what this machine has --

    async def offer(self, folder: Path, *, follow_links: bool = False, without: Collection[str] = ()) -> str:
        """Returns the digest of a folder, which is handed out from its place from now on.

        A file is read once for as long as it does not change. follow_links: a link to a file counts as that
        file, as in the hub's cache of base models. without: names of files that are left out. Raises
        StorageError for a folder with other things than plain files.
        """
        try:
            manifest = await asyncio.to_thread(
                self.copies.digests.manifest, folder, follow_links=follow_links, without=without
            )
        except OSError as error:
            raise StorageError(f"{folder} cannot be read ({error}): was it removed just now?") from error
        digest = digest_of_manifest(manifest)
        self._offers[digest] = _Offer(folder=folder, manifest=manifest, follow_links=follow_links)
        self._offers.move_to_end(digest)
        while len(self._offers) > _MOST_OFFERS:
            self._offers.popitem(last=False)
        return digest

    async def adopt(self, folder: Path) -> str:
        """Takes a folder that a worker wrote in `copies.written` as a copy; returns its digest, again when
        asked again.

        Raises StorageError, DiskError.
        """
        if folder not in self._adopted:
            digest = await run_to_end(self.copies.adopt, folder)
            await self._keep(digest, self._keep_s)
            self._adopted[folder] = digest
            if len(self._adopted) > _MOST_OFFERS:
                self._adopted.pop(next(iter(self._adopted)))
        return self._adopted[folder]

    async def manifest(self, digest: str) -> Manifest:
        """The manifest of what is handed out here. Raises NotFoundError, StorageError (no digest)."""
        check_digest(digest)
        if (offer := self._offers.get(digest)) is not None:
            return offer.manifest
        manifest = None
        if self.copies.files(digest).exists():
            async with self.using(digest):
                manifest = await asyncio.to_thread(self.copies.verified, digest)
        if manifest is None:
            raise NotFoundError(f"this shelf has no copy {digest[:12]}", status=404, code="no_copy")
        return manifest

    async def open_file(self, digest: str, name: str) -> tuple[int, ManifestEntry]:
        """The descriptor of a file that is handed out, and its entry. Raises NotFoundError, StorageError."""
        manifest = await self.manifest(digest)
        entry, offer = manifest.files.get(name), self._offers.get(digest)
        folder = offer.folder if offer is not None else self.copies.files(digest)
        if entry is not None:
            with contextlib.suppress(OSError):  # it is not any more what was offered
                follow_links = offer is not None and offer.follow_links
                descriptor = await asyncio.to_thread(open_beneath, folder, name, follow_links=follow_links)
                if os.fstat(descriptor).st_size == entry.size:
                    return descriptor, entry
                os.close(descriptor)
            self._offers.pop(digest, None)
        raise NotFoundError(f"{digest[:12]} has no file {name!r:.200}", status=404, code="no_file")

    # -- what it gets --

    async def fetch(self, digest: str, sources: Sequence[Source], *, hold: bool = False) -> Path:
        """Returns the folder of a verified copy, which is fetched if it is not here.

        hold: it stays until this shelf is closed, as a base model does for its worker. Raises StorageError
        that names each source and its failure, DiskError, DeadlineError.
        """
        check_digest(digest)
        while True:
            flight, own = self._flights.get(digest), False
            if flight is None:
                own = True
                flight = self._flights[digest] = asyncio.create_task(self._fetch(digest, sources))
                flight.add_done_callback(lambda done: self._land(digest, done))
            try:
                path = await asyncio.shield(flight)
                if hold:
                    await self._keep(digest, math.inf)
                return path
            except StorageError:
                if own:  # else these sources were not asked
                    raise

    def _land(self, digest: str, flight: asyncio.Task[Path]) -> None:
        if self._flights.get(digest) is flight:
            del self._flights[digest]
        if not flight.cancelled():
            flight.exception()  # whoever asked may be gone

    async def _fetch(self, digest: str, sources: Sequence[Source]) -> Path:
        try:
            async with asyncio.timeout(self._limits.total):
                await self._keep(digest, self._keep_s)  # first, so that nobody evicts what is found
                if await asyncio.to_thread(self.copies.verified, digest) is None:
                    async with self._only_fetch(digest):
                        if await run_to_end(self.copies.verified, digest) is None:
                            await self._pull(digest, sources)
        except TimeoutError as error:
            if isinstance(error, DeadlineError):
                raise
            urls = ", ".join(source.url for source in sources)
            raise DeadlineError(
                f"the copy {digest[:12]} was not here within {self._limits.total:g} s; sources: {urls}"
            ) from error
        return self.copies.files(digest)

    @contextlib.asynccontextmanager
    async def _only_fetch(self, digest: str) -> AsyncIterator[None]:
        """Waits until no other process of the node fetches this copy."""
        descriptor = await _lock_when_free(self.copies.try_fetch_lock, digest)
        try:
            yield
        finally:
            os.close(descriptor)

    async def _pull(self, digest: str, sources: Sequence[Source]) -> None:
        puller = FilePuller(digest, sources, self._limits)
        try:
            manifest = await puller.manifest()
            folder = await run_to_end(self.copies.begin, digest, manifest)
            try:
                await run_to_end(self.copies.link_same_files, digest, manifest)
                for name, entry in manifest.files.items():
                    await puller.pull(name, entry, folder / name)
            except OSError as error:
                raise await run_to_end(self.copies.give_up, digest, error) from error
            await run_to_end(self.copies.finish, digest)
        finally:
            await puller.close()
        _log.info("the copy %s is here: %s", digest[:12], puller.pulled)

    async def bring(self, digest: str, sources: Sequence[Source], target: Path) -> None:
        """Pulls a folder to a place outside the copies, which must be free: it appears whole, or not at all.

        Raises StorageError, DiskError, DeadlineError.
        """
        check_digest(digest)
        fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
        puller = FilePuller(digest, sources, self._limits)
        try:
            async with asyncio.timeout(self._limits.total):
                manifest = await puller.manifest()
                await run_to_end(_make_folders, fresh, manifest)
                for name, entry in manifest.files.items():
                    await puller.pull(name, entry, fresh / name)
                await run_to_end(self._put_in_place, fresh, target, manifest)
        except TimeoutError as error:
            raise DeadlineError(f"{target} was not here within {self._limits.total:g} s") from error
        except OSError as error:
            raise disk_error(error, target, "what a worker wrote could not be stored") from error
        finally:
            await run_to_end(_remove_folder, fresh)
            await puller.close()

    def _put_in_place(self, fresh: Path, target: Path, manifest: Manifest) -> None:
        for folder in sorted({(fresh / name).parent for name in manifest.files} | {fresh}, reverse=True):
            flush(folder)
        if target.exists():
            raise StorageError(f"{target} exists already: what a worker wrote does not replace it")
        for name, entry in manifest.files.items():
            self.copies.digests.remember(fresh / name, entry)  # its offer needs no second reading
        fresh.rename(target)
        flush(target.parent)

    # -- what is in use --

    @contextlib.asynccontextmanager
    async def using(self, digest: str) -> AsyncIterator[Path]:
        """The copy is not evicted while the block runs. It may be absent: `fetch` it inside."""
        check_digest(digest)
        descriptor = await _lock_when_free(self.copies.try_pin, digest)
        try:
            yield self.copies.files(digest)
        finally:
            os.close(descriptor)

    async def _keep(self, digest: str, seconds: float) -> None:
        """Keeps a copy for as long as whoever was given it takes to load it."""
        self._let_go()
        until = time.monotonic() + seconds
        if digest not in self._pins:
            descriptor = await _lock_when_free(self.copies.try_pin, digest)
            if digest in self._pins:  # two at once
                os.close(descriptor)
            else:
                self._pins[digest] = (descriptor, until)
        descriptor, before = self._pins[digest]
        self._pins[digest] = (descriptor, max(before, until))
        if seconds < math.inf:
            asyncio.get_running_loop().call_later(seconds + _LOCK_PAUSE_S, self._let_go)

    def _let_go(self) -> None:
        for digest, (descriptor, until) in list(self._pins.items()):
            if time.monotonic() >= until and digest not in self._flights:
                os.close(descriptor)
                del self._pins[digest]

    def list_copies(self) -> list[CopyOnDisk]:
        """All that is here or arrives. Blocks for a few file operations a copy."""
        return self.copies.list_copies()

    async def publish(self, digest: str, url: str) -> None:
        """Writes a copy behind an `fsspec` URL, from where every shelf can fetch it, unless it is there: the
        manifest comes last.

        Raises NotFoundError, StorageError, MissingExtraError.
        """
        manifest = await self.manifest(digest)
        offer = self._offers.get(digest)
        folder = offer.folder if offer is not None else self.copies.files(digest)
        file_system, root = await asyncio.to_thread(open_bucket, url)
        over = threading.Event()

        def write() -> None:
            # A bucket that is not there is none of ours to make, nor a share that is not mounted.
            above = root.rpartition("/")[0] if root.startswith("/") else root.partition("/")[0]
            if not file_system.exists(above):
                raise FileNotFoundError(f"there is no {above}")
            place = f"{root}/{digest}"
            if file_system.exists(f"{place}/{MANIFEST_FILE}"):
                return
            for name in manifest.files:
                if over.is_set():  # nobody waits for it any more
                    return
                path = f"{place}/files/{name}"
                file_system.makedirs(path.rpartition("/")[0], exist_ok=True)
                file_system.put_file(str(folder / name), path)
            file_system.pipe_file(f"{place}/{MANIFEST_FILE}", canonical_json(manifest))

        try:
            async with asyncio.timeout(self._limits.total):
                await asyncio.to_thread(write)
        except TimeoutError as error:
            raise DeadlineError(f"{url} did not take the copy within {self._limits.total:g} s") from error
        except Exception as error:  # each file system has errors of its own
            raise StorageError(f"{url} did not take the copy {digest[:12]}: {error}") from error
        finally:
            over.set()

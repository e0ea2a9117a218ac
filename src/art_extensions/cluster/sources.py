"""Where a copy can be had, and how a file of it is pulled: from each source in turn, on from what is there.

    http://10.0.0.7:41234   a server's or a node's shelf (`art_extensions.cluster.shelf_app`), under its key
    s3://bucket/shelf       a folder laid out as a shelf's `copies`, of any file system that `fsspec` knows

Nothing that a source says is believed: what it sends is counted while it arrives and compared with the sha256
of a manifest that itself has the digest that was asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar
from urllib.parse import quote

import httpx
from pydantic import Field

from art.errors import StorageError, extra_needed
from art.process.resources import no_tls
from art.wire.models import MANIFEST_FILE, Manifest, ManifestEntry, manifest_entry
from art.wire.records import Strict
from art_extensions.cluster.folder_manifest import MOST_MANIFEST_BYTES, read_manifest

R = TypeVar("R")
CHUNK = 1 << 20
"""Bytes of one read."""


class Source(Strict):
    """One place where a copy can be had."""

    url: str
    """`http://host:port` of a shelf, or an `fsspec` URL such as `s3://bucket/shelf`."""
    key: str = Field(default="", repr=False)
    """The shelf's key; "" for an `fsspec` URL."""


@dataclass(frozen=True, kw_only=True)
class PullLimits:
    """Seconds of one pull. total: all of it. silence: without a byte.

    rounds: how often the sources are asked for one file, with `pause` between, while one of them may recover.
    """

    total: float = 3600.0
    connect: float = 5.0
    silence: float = 30.0
    rounds: int = 3
    pause: float = 0.5


class _SourceFailedError(Exception):
    """A source did not give what was asked. `lasting`: asking it again is of no use. `advanced`: it gave a
    part of it, and may give the next.
    """

    def __init__(self, reason: str, *, lasting: bool = True, advanced: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting
        self.advanced = advanced


async def run_to_end(work: Callable[..., R], *arguments: Any) -> R:
    """`work(*arguments)` in a thread. A cancelled caller waits for its end, with the locks that it holds."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class _Reader(Protocol):
    async def manifest(self, digest: str) -> bytes: ...

    def stream(self, digest: str, name: str, start: int) -> AsyncGenerator[bytes, None]: ...

    async def close(self) -> None: ...


class FilePuller:
    """Pulls the manifest and the files of one digest. Close it."""

    def __init__(self, digest: str, sources: Sequence[Source], limits: PullLimits) -> None:
        """Raises StorageError without a source, MissingExtraError for an `fsspec` URL without `fsspec`."""
        if not sources:
            raise StorageError(f"no source has {digest[:12]}: none was named")
        self._digest = digest
        self._limits = limits
        self._readers = [(source.url, _make_reader(source, limits)) for source in sources]
        self.failures: dict[str, str] = {}
        """URL of a source -> its last failure."""
        self.pulled: dict[str, int] = {}
        """URL of a source -> bytes that it sent."""

    async def close(self) -> None:
        """Closes the connections."""
        for _, reader in self._readers:
            await reader.close()

    async def manifest(self) -> Manifest:
        """The manifest from the first source that has it. Raises StorageError that names each failure."""
        for url, reader in self._readers:
            try:
                return read_manifest(await reader.manifest(self._digest), self._digest)
            except (_SourceFailedError, StorageError) as error:
                self.failures[url] = str(error)
        raise self._no_source_error("its manifest")

    async def pull(self, name: str, entry: ManifestEntry, path: Path) -> None:
        """Writes one file to the disk, whole and checked; what is there of it already is kept and read.

        Raises StorageError that names each source and its failure, OSError.
        """
        if await run_to_end(_is_whole, path, entry):
            return
        able = dict(self._readers)
        for turn in range(self._limits.rounds):
            if turn and able:
                await asyncio.sleep(self._limits.pause)
            for url, reader in list(able.items()):
                failure = await self._pull_from(url, reader, name, entry, path)
                if failure is None:
                    return
                self.failures[url] = str(failure)
                if failure.lasting:
                    del able[url]
        raise self._no_source_error(name)

    async def _pull_from(
        self, url: str, reader: _Reader, name: str, entry: ManifestEntry, path: Path
    ) -> _SourceFailedError | None:
        """Asks one source for as long as it sends more. None: the file is there."""
        while True:
            try:
                await self._continue(url, reader, name, entry, path)
                return None
            except _SourceFailedError as error:
                if not error.advanced:
                    return error

    async def _continue(self, url: str, reader: _Reader, name: str, entry: ManifestEntry, path: Path) -> None:
        with path.open("ab") as file:
            digest, start = await asyncio.to_thread(_read_start, path, entry.size)
            file.truncate(start)
            if start < entry.size:
                await self._receive(url, reader, name, entry, file, digest, start)
            if digest.hexdigest() == entry.sha256:
                await run_to_end(_flush_file, file)
                return
            file.truncate(0)
        # What was there before may be the wrong part.
        raise _SourceFailedError(f"{name} has another sha256 than the manifest says", advanced=start > 0)

    async def _receive(
        self,
        url: str,
        reader: _Reader,
        name: str,
        entry: ManifestEntry,
        file: IO[bytes],
        digest: Any,
        start: int,
    ) -> None:
        """Appends what is missing. What came before a failure stays for the next one."""
        size = start
        try:
            async with aclosing(reader.stream(self._digest, name, start)) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > entry.size:
                        raise _SourceFailedError(f"{name} has more than its {entry.size} bytes")
                    self.pulled[url] = self.pulled.get(url, 0) + len(chunk)
                    await run_to_end(_append, file, digest, chunk)
        except _SourceFailedError as error:
            error.advanced = size > start and not error.lasting
            raise
        if size < entry.size:
            raise _SourceFailedError(
                f"{name} ended after {size} of {entry.size} bytes", advanced=size > start
            )

    def _no_source_error(self, what: str) -> StorageError:
        failures = "; ".join(f"{url}: {self.failures.get(url, 'not asked')}" for url, _ in self._readers)
        return StorageError(f"no source gave {what} of {self._digest[:12]} ({failures})")


def _is_whole(path: Path, entry: ManifestEntry) -> bool:
    """Returns whether the file is there and right. What cannot be continued is removed."""
    if not path.exists():
        return False
    found = path.lstat()
    if found.st_size < entry.size and found.st_nlink == 1 and stat.S_ISREG(found.st_mode):
        return False
    if stat.S_ISREG(found.st_mode) and manifest_entry(path) == entry:
        return True
    path.unlink()
    return False


def _flush_file(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _append(file: IO[bytes], digest: Any, chunk: bytes) -> None:
    digest.update(chunk)
    file.write(chunk)


def _read_start(path: Path, size: int) -> tuple[Any, int]:
    """The running sha256 of what is there, and its length; nothing of a file that is too long is kept."""
    found = path.stat().st_size
    if found > size:
        return hashlib.sha256(), 0
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256"), found


def _make_reader(source: Source, limits: PullLimits) -> _Reader:
    if source.url.startswith(("http://", "https://")):
        return _ShelfReader(source, limits)
    return _BucketReader(source.url, limits)


class _ShelfReader:
    """The routes of a shelf."""

    def __init__(self, source: Source, limits: PullLimits) -> None:
        key = {"Authorization": f"Bearer {source.key}"} if source.key else {}
        self._http = httpx.AsyncClient(
            base_url=source.url,
            headers={"Accept-Encoding": "identity", **key},
            timeout=httpx.Timeout(limits.silence, connect=limits.connect),
            trust_env=False,
            verify=no_tls() if source.url.startswith("http://") else True,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def manifest(self, digest: str) -> bytes:
        content = bytearray()
        try:
            async with self._http.stream("GET", f"/shelf/{digest}/manifest") as reply:
                await _check_status(reply, 200)
                async for chunk in reply.aiter_bytes(CHUNK):
                    content += chunk
                    if len(content) > MOST_MANIFEST_BYTES:
                        raise _SourceFailedError(f"its manifest has over {MOST_MANIFEST_BYTES} bytes")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _SourceFailedError(_connection_words(error), lasting=False) from error
        return bytes(content)

    async def stream(self, digest: str, name: str, start: int) -> AsyncGenerator[bytes, None]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        waiting = bytearray()
        try:
            route = f"/shelf/{digest}/files/{quote(name)}"
            async with self._http.stream("GET", route, headers=headers) as reply:
                await _check_status(reply, 206 if start else 200)
                if start and not reply.headers.get("content-range", "").startswith(f"bytes {start}-"):
                    raise _SourceFailedError(f"it sent another part of {name} than the one asked for")
                async for chunk in reply.aiter_raw():  # in pieces of its own size
                    waiting += chunk
                    if len(waiting) >= CHUNK:
                        yield bytes(waiting)
                        waiting.clear()
            yield bytes(waiting)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            yield bytes(waiting)  # the next request goes on behind it
            raise _SourceFailedError(_connection_words(error), lasting=False) from error


async def _check_status(reply: httpx.Response, wanted: int) -> None:
    if reply.status_code == wanted:
        return
    status = reply.status_code
    words = {401: "it refuses the key", 404: "it has no such copy"}
    raise _SourceFailedError(words.get(status, f"it answered with status {status}"), lasting=status < 500)


def _connection_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class _BucketReader:
    """A folder of copies behind an `fsspec` URL. Its calls block, so a thread makes them."""

    def __init__(self, url: str, limits: PullLimits) -> None:
        self._limits = limits
        self._fs, self._root = open_bucket(url)

    async def close(self) -> None:
        """Does nothing: `fsspec` keeps its connections."""

    async def manifest(self, digest: str) -> bytes:
        path = f"{self._root}/{digest}/{MANIFEST_FILE}"
        most = MOST_MANIFEST_BYTES + 1
        content: bytes = await self._call(lambda: self._fs.cat_file(path, start=0, end=most))
        return content

    async def stream(self, digest: str, name: str, start: int) -> AsyncGenerator[bytes, None]:
        path = f"{self._root}/{digest}/files/{name}"
        size: int = await self._call(lambda: int(self._fs.size(path)))
        for begin in range(start, size, 8 * CHUNK):
            end = min(size, begin + 8 * CHUNK)
            yield await self._call(lambda begin=begin, end=end: self._fs.cat_file(path, start=begin, end=end))

    async def _call(self, call: Any) -> Any:
        try:
            async with asyncio.timeout(self._limits.connect + self._limits.silence):
                return await asyncio.to_thread(call)
        except FileNotFoundError as error:
            raise _SourceFailedError("it has no such copy") from error
        except TimeoutError as error:
            raise _SourceFailedError("it was silent for too long", lasting=False) from error
        except Exception as error:  # each file system has errors of its own
            raise _SourceFailedError(_connection_words(error), lasting=False) from error


def open_bucket(url: str) -> tuple[Any, str]:
    """The file system of an `fsspec` URL, and the path in it. Raises StorageError, MissingExtraError."""
    with extra_needed("s3", f"the source {url.partition('://')[0]}://"):
        from fsspec.core import url_to_fs
    try:
        file_system, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as error:
        with extra_needed("s3", f"the source {url.partition('://')[0]}://"):
            raise ModuleNotFoundError(str(error), name=error.name) from error
    except ValueError as error:
        raise StorageError(f"{url.partition('://')[0]!r} is no kind of address of files: {error}") from error
    return file_system, str(root).rstrip("/")

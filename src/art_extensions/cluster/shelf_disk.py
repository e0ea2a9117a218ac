"""Folders between the server and a worker elsewhere, by content: one copy a node, few from the server.

fetch      the server offers the folder; the worker's node fetches its digest from a node that has it, or
           from the server. What is large goes through a bucket, where there is one
place      a name in the folder of the node in which its workers write
collect    the node takes what was written as a copy; the server pulls it beside the folder and renames it
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path

from art.errors import ARTError, DeadlineError, StorageError, WorkerError
from art_extensions.cluster.shelf import Shelf
from art_extensions.cluster.shelf_app import NodeShelf
from art_extensions.cluster.sources import Source

_log = logging.getLogger(__name__)
_MOST_PEERS = 3
"""Further nodes that a node may ask for a copy when the first does not answer."""
_MOST_DIGESTS = 256


@dataclass(slots=True)
class _Spread:
    """The nodes that have one digest, give it and get it."""

    having: dict[str, Source] = field(default_factory=dict)
    giving: Counter[str] = field(default_factory=Counter)
    getting: set[str] = field(default_factory=set)


class FanOut:
    """Chooses from whom a node pulls a copy: each source gives to `most_at_once` nodes at a time, and whoever
    has a copy is a source for the next ones.

    So the server sends `most_at_once` copies, however many nodes there are, and 100 nodes have theirs after
    five rounds.
    """

    def __init__(self, server: Source, *, most_at_once: int = 2, patience: float = 3600.0) -> None:
        """patience: seconds that a node waits for its turn."""
        self._server = server
        self._most = most_at_once
        self._patience = patience
        self._spreads: OrderedDict[str, _Spread] = OrderedDict()
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def choose_sources(
        self, digest: str, node: Source, bucket: Source | None = None
    ) -> AsyncIterator[list[Source]]:
        """The sources for a node that wants a copy, best first, in a block that ends when it has it.

        bucket: has it, and gives to all nodes at once. Raises DeadlineError when its turn does not come.
        """
        spread = self._spread(digest)
        if bucket is not None:
            yield [bucket, *self._sources(spread, self._server, node)]
            spread.having[node.url] = node
            return
        if node.url in spread.having or node.url in spread.getting:  # it will find it there
            yield self._sources(spread, self._server, node)
            return
        spread.getting.add(node.url)
        chosen = None
        try:
            chosen = await self._take_turn(spread, digest)
            yield self._sources(spread, chosen, node)
            spread.having[node.url] = node
        finally:
            spread.getting.discard(node.url)
            if chosen is not None:
                spread.giving[chosen.url] -= 1
            async with self._changed:
                self._changed.notify_all()

    def forget(self, node: Source) -> None:
        """A node that is lost gives nothing any more."""
        for spread in self._spreads.values():
            spread.having.pop(node.url, None)

    def _spread(self, digest: str) -> _Spread:
        spread = self._spreads.setdefault(digest, _Spread())
        self._spreads.move_to_end(digest)
        for old in list(self._spreads)[: max(0, len(self._spreads) - _MOST_DIGESTS)]:
            if not self._spreads[old].getting:
                del self._spreads[old]
        return spread

    async def _take_turn(self, spread: _Spread, digest: str) -> Source:
        def free() -> list[Source]:
            # The server has other work: it gives to the first ones only.
            able = list(spread.having.values()) or [self._server]
            return [source for source in able if spread.giving[source.url] < self._most]

        try:
            async with asyncio.timeout(self._patience), self._changed:
                await self._changed.wait_for(free)
                chosen = min(free(), key=lambda source: spread.giving[source.url])
                spread.giving[chosen.url] += 1
                return chosen
        except TimeoutError as error:
            raise DeadlineError(
                f"no node and no server was free to give the copy {digest[:12]} for {self._patience:g} s"
            ) from error

    def _sources(self, spread: _Spread, first: Source, node: Source) -> list[Source]:
        """The chosen one, some that have it too, and always the server."""
        others = [one for one in spread.having.values() if one.url not in (first.url, node.url)]
        chosen = [first, *others[:_MOST_PEERS]]
        return chosen if first.url == self._server.url else [*chosen, self._server]


class Bucket:
    """Copies behind an `fsspec` URL: the server puts each there once, and all nodes read it."""

    def __init__(self, shelf: Shelf, url: str, least_bytes: int, *, again_s: float = 60.0) -> None:
        """least_bytes: what is smaller does not go through it. again_s: seconds until a copy that it did not
        take is tried again.
        """
        self.source = Source(url=url)
        self._shelf = shelf
        self._least_bytes = least_bytes
        self._again_s = again_s
        self._published: dict[str, asyncio.Task[bool]] = {}

    async def has(self, digest: str) -> bool:
        """Returns whether nodes find the copy there. A large one that is offered here is put there first."""
        manifest = await self._shelf.manifest(digest)
        if sum(entry.size for entry in manifest.files.values()) < self._least_bytes:
            return False
        if (task := self._published.get(digest)) is None:
            task = self._published[digest] = asyncio.create_task(self._publish(digest))
            if len(self._published) > _MOST_DIGESTS:
                del self._published[next(iter(self._published))]
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Ends what is being put there."""
        tasks = list(self._published.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _publish(self, digest: str) -> bool:
        try:
            await self._shelf.publish(digest, self.source.url)
        except (ARTError, OSError) as error:
            _log.warning("nodes get %s without the bucket: %s", digest[:12], error)
            asyncio.get_running_loop().call_later(self._again_s, self._published.pop, digest, None)
            return False
        return True


class ShelfDisk:
    """The disk of a worker on another machine (`art.process.worker.WorkerDisk`)."""

    def __init__(self, shelf: Shelf, node: NodeShelf, fan_out: FanOut, bucket: Bucket | None = None) -> None:
        """shelf: the server's own. node: where the worker runs. fan_out, bucket: one for all nodes."""
        self._shelf = shelf
        self._bucket = bucket
        self._node = node
        self._fan_out = fan_out
        self._places: dict[Path, Path] = {}

    async def fetch(self, folder: Path, *, without: Collection[str] = ()) -> Path:
        """Returns where the node has its copy of a folder, such as a checkpoint, without some of its files.

        Raises StorageError, DiskError (of either machine), DeadlineError, WorkerError.
        """
        return await self._fetch(await self._shelf.offer(folder, without=without))

    async def fetch_base_model(self, folder: Path) -> Path:
        """Returns where the node has its copy of a base model's folder, whose files may be links, as those of
        the hub's cache are. It stays there for as long as the node's shelf.

        Raises what `fetch` raises.
        """
        return await self._fetch(await self._shelf.offer(folder, follow_links=True), hold=True)

    async def _fetch(self, digest: str, *, hold: bool = False) -> Path:
        source = self._node.address.source
        bucket = self._bucket.source if self._bucket and await self._bucket.has(digest) else None
        async with self._fan_out.choose_sources(digest, source, bucket) as sources:
            try:
                return await self._node.fetch(digest, sources, hold=hold)
            except WorkerError:
                self._fan_out.forget(source)
                raise

    def place(self, folder: Path) -> Path:
        """Returns a new name on the node for what `collect` brings to `folder`."""
        place = Path(self._node.address.written) / f"w{secrets.token_hex(8)}"
        self._places[folder] = place
        return place

    async def collect(self, folder: Path) -> None:
        """Brings what the worker wrote to `folder`, which must not exist: whole and checked, or not at all.

        Raises StorageError, DiskError (of either machine), DeadlineError, WorkerError.
        """
        place = self._places.get(folder)
        if place is None:
            raise StorageError(f"no worker writes the files of {folder}")
        digest = await self._node.adopt(place)
        try:
            await self._shelf.bring(digest, [self._node.address.source], folder)
        except StorageError:
            await self._node.adopt(place)  # raises WorkerError where the node is gone: that is the cause
            raise
        del self._places[folder]

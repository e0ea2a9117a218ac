"""The cluster of one server: places workers on nodes, starts them there, and knows where each of them is.

    launcher = await ClusterLauncher.start(settings, folder)
    worker = await launcher.launch(spec)          # as `Worker.start` does on this machine

Restarts are the supervisors' alone. Ray restarts nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from art.errors import DISTRIBUTION, ConfigurationError, DeadlineError, NotFoundError
from art.process.files import write_first
from art.process.worker import GangPlace, WorkerSpec
from art.server.cluster_settings import ClusterSettings
from art_extensions.cluster.cluster_record import ClusterRecord, DrainedNodes
from art_extensions.cluster.host_client import HostClient
from art_extensions.cluster.messages import HostAddress, HostOrder, PlaceOrder
from art_extensions.cluster.placer_link import PlacerLink
from art_extensions.cluster.plan import NodeRow, WorkerBundle, choose_bundle, place_member, why_no_room
from art_extensions.cluster.remote_worker import RemoteWorker
from art_extensions.cluster.shelf import Shelf
from art_extensions.cluster.shelf_app import NodeShelf, ShelfServer
from art_extensions.cluster.shelf_disk import Bucket, FanOut, ShelfDisk

_log = logging.getLogger(__name__)
_RELEASE_S = 10.0
_SWEEP_S = 60.0
_SUSPECT_S = 60.0
"""Seconds for which a node whose connections broke is avoided, unless there is no other."""
_GB = 10**9


class _GangNodes:
    """The nodes of one gang, by its parts."""

    def __init__(self) -> None:
        self.of_parts: dict[int, str] = {}
        self.placing = asyncio.Lock()


class ClusterLauncher:
    """One for a server. `start` it, and close it when its workers have ended."""

    def __init__(self, settings: ClusterSettings, server_id: str) -> None:
        self.settings = settings
        self.drained: DrainedNodes
        self._server_id = server_id
        self._workers: dict[str, RemoteWorker] = {}
        self._names: set[str] = set()
        self._suspected: dict[str, float] = {}
        self._gangs: dict[str, _GangNodes] = {}
        self._link: PlacerLink
        self._shelf: Shelf
        self._shelf_server: ShelfServer
        self._fan_out: FanOut
        self._bucket: Bucket | None = None
        self._record: ClusterRecord

    @classmethod
    async def start(cls, settings: ClusterSettings, folder: Path, logs: Path) -> ClusterLauncher:
        """Connect to the cluster, and serve what its nodes are to get.

        folder: of this server, for its name in the cluster and the shelf. What an earlier server of the
        folder left in the cluster ends. Raises ConfigurationError, WorkerDiedError, DeadlineError.
        """
        launcher = cls(settings, await asyncio.to_thread(_server_id, folder))
        launcher.drained = await asyncio.to_thread(DrainedNodes, folder)
        link = await PlacerLink.start(settings, logs / "placer.log", launcher._on_nodes)
        launcher._link = link
        async with contextlib.AsyncExitStack() as opened:
            opened.push_async_callback(link.close)
            launcher._shelf = Shelf(folder / "shelf", int(settings.shelf_gb * _GB))
            opened.push_async_callback(launcher._shelf.close)
            host = settings.host or link.ready.node
            launcher._shelf_server = await ShelfServer.start(launcher._shelf, host, takes_orders=False)
            opened.push_async_callback(launcher._shelf_server.stop)
            launcher._fan_out = FanOut(launcher._shelf_server.address.source)
            if settings.bucket is not None:
                least = int(settings.bucket_from_gb * _GB)
                launcher._bucket = Bucket(launcher._shelf, settings.bucket, least)
            left = await link.sweep(launcher._actor(""), _SWEEP_S)
            opened.pop_all()  # `close` does the same, when all has succeeded
        launcher._record = ClusterRecord(folder, launcher.health)
        if left:
            _log.warning("workers of an earlier server were ended: %s", ", ".join(left))
        _log.info(
            "cluster %s: %d nodes, token %s",
            link.ready.cluster,
            len(launcher.nodes),
            "asked for" if link.ready.authenticated else "not asked for",
        )
        return launcher

    @property
    def nodes(self) -> list[NodeRow]:
        """Returns the nodes that live."""
        return [node for node in self._link.nodes if node.alive]

    @property
    def shelf_url(self) -> str:
        """Returns the address at which nodes reach this machine."""
        return self._shelf_server.address.url

    @property
    def placer_pid(self) -> int | None:
        return self._link.pid

    @property
    def workers(self) -> Sequence[RemoteWorker]:
        """Returns the workers that run or start."""
        return list(self._workers.values())

    async def close(self) -> None:
        """Let go of the cluster. Workers that still run end."""
        await self._record.close()
        await asyncio.gather(*(worker.stop() for worker in self.workers))
        if self._bucket is not None:
            await self._bucket.close()
        await self._shelf_server.stop()
        await self._shelf.close()
        await self._link.close()

    async def launch(self, spec: WorkerSpec) -> RemoteWorker:
        """Start a worker on a node that has room.

        Raises WorkerDiedError, ConfigurationError, DeadlineError, StorageError.
        """
        bundle = choose_bundle(
            spec.name,
            self.settings,
            self._link.nodes,
            parallel=spec.gpus,
            drained=list(self.drained),
            suspected=self._suspects(),
        )
        name = self._free_name(spec.name)
        self._names.add(name)
        try:
            if spec.gang is None:
                host = await self.place(name, bundle)
            else:
                host = await self._place_member(name, bundle, spec.gang)
        except BaseException:
            self._names.discard(name)
            raise
        shelf = NodeShelf(host.address.shelf)

        async def release(lost: bool) -> None:
            self._workers.pop(name, None)
            if lost:
                self._suspected[host.address.node_id] = time.monotonic() + _SUSPECT_S
                self._fan_out.forget(host.address.shelf.source)
            await shelf.close()
            try:
                await self.release(name)
            finally:
                self._names.discard(name)

        disk = ShelfDisk(self._shelf, shelf, self._fan_out, self._bucket)
        worker = RemoteWorker(spec, host, disk, silence=self.settings.silence, release=release)
        self._workers[name] = worker
        await worker.begin(self.settings.lease)
        return worker

    async def _place_member(self, name: str, bundle: WorkerBundle, gang: GangPlace) -> HostClient:
        """A host for a member of a gang, one after the other: where the first of a part is, the others go.

        Raises what `place` raises.
        """
        if gang.rank == 0:  # it starts first, and with it a new gang
            self._gangs[gang.name] = _GangNodes()
        nodes = self._gangs[gang.name]
        async with nodes.placing:
            size = gang.ranks // gang.nodes
            member = place_member(bundle, self._link.nodes, part=gang.node, size=size, placed=nodes.of_parts)
            host = await self.place(name, member)
            nodes.of_parts[gang.node] = host.address.node_id
        return host

    async def place(self, name: str, bundle: WorkerBundle) -> HostClient:
        """A host of that name on a node that has room. Whoever has it renews its lease, and closes it.

        Raises WorkerDiedError, ConfigurationError, DeadlineError.
        """
        key = secrets.token_urlsafe(32)
        own = version(DISTRIBUTION)
        order = PlaceOrder(
            name=self._actor(name),
            bundle=bundle,
            host=HostOrder(
                nonce=secrets.token_hex(8),
                key=key,
                version=own,
                lease=self.settings.lease,
                shelf=self.settings.shelf,
                shelf_bytes=int(self.settings.shelf_gb * _GB),
            ),
            deadline=self.settings.place,
        )
        try:
            address: HostAddress = await self._link.place(order)
        except DeadlineError as error:
            words = why_no_room(name, bundle, self._link.nodes, self.settings.place)
            raise DeadlineError(words) from error
        host = HostClient(address, key)
        if address.version != own:
            await host.close()
            await self.release(name)
            raise ConfigurationError(
                f"node {address.node} has version {address.version} of {DISTRIBUTION}, and this server has "
                f"{own}: install the same on all nodes"
            )
        return host

    async def release(self, name: str) -> None:
        """End the host of that name. Raises DeadlineError, WorkerDiedError."""
        await self._link.release(self._actor(name), _RELEASE_S)

    def find_node(self, address: str) -> NodeRow:
        """The node with an address or an id that lives. Raises NotFoundError, which lists them."""
        for node in self.nodes:
            if address in (node.address, node.id):
                return node
        known = ", ".join(node.address for node in self.nodes) or "none"
        raise NotFoundError(f"{address!r} is no node of the cluster; nodes: {known}", status=404, code="node")

    def health(self) -> dict[str, Any]:
        """Returns what `/health` shows of the cluster."""
        ready = self._link.ready
        return {
            "address": ready.cluster,
            "ray": ready.ray,
            "authenticated": ready.authenticated,
            "shelf": self.shelf_url,
            "bucket": self.settings.bucket,
            "placer": {"state": self._link.state, "restarts": self._link.restarts},
            "nodes": [
                {
                    "address": node.address,
                    "id": node.id,
                    "state": "drained" if node.id in self.drained else "up",
                    "resources": node.totals,
                }
                for node in self.nodes
            ],
            "workers": [
                {
                    "name": name,
                    "node": worker.node,
                    "pid": worker.pid,
                    "lease_age": round(worker.lease_age, 1),
                    "lease": self.settings.lease,
                }
                for name, worker in sorted(self._workers.items())
            ],
        }

    def _actor(self, name: str) -> str:
        return f"art/{self._server_id}/{name}"

    def _free_name(self, worker: str) -> str:
        """Returns the worker's name, or one like it while its predecessor serves."""
        return next(
            name
            for number in range(1, len(self._names) + 2)
            if (name := worker if number == 1 else f"{worker}+{number}") not in self._names
        )

    def _suspects(self) -> list[str]:
        now = time.monotonic()
        self._suspected = {node: until for node, until in self._suspected.items() if until > now}
        return sorted(self._suspected)

    def _on_nodes(self, nodes: Sequence[NodeRow]) -> None:
        dead = {node.id: node.why_dead for node in nodes if not node.alive}
        for worker in self.workers:
            if worker.node_id in dead:
                worker.lose_node(dead[worker.node_id])


def _server_id(folder: Path) -> str:
    """Returns the name of this folder's server in the cluster, which is made once."""
    path = folder / "cluster-id"
    if not path.exists():
        write_first(path, secrets.token_hex(6) + "\n")
    return path.read_text(encoding="ascii").strip()

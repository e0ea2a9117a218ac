"""`art cluster doctor`: whether a cluster may be used, and whether each of its nodes can hold workers.

A host is placed on every node for a moment. It says which versions it has. The server's side then tries to
reach it, and it tries to reach the server's side: workers need both ways.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from art.errors import DISTRIBUTION, ARTError
from art.server.cluster_settings import ClusterSettings
from art_extensions.cluster.launcher import ClusterLauncher
from art_extensions.cluster.plan import NodeRow, WorkerBundle, describe_amounts

_REACH_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFinding:
    """One finding, about the cluster or about a node of it."""

    good: bool
    subject: str
    what: str


async def examine_cluster(settings: ClusterSettings, folder: Path) -> AsyncIterator[NodeFinding]:
    """Yields what is found, the cluster first, then each node. folder: an empty one for the time.

    Raises ConfigurationError (the cluster may not be used), WorkerDiedError, DeadlineError.
    """
    launcher = await ClusterLauncher.start(settings, folder, folder)
    try:
        health = launcher.health()
        token = "asks for a token" if health["authenticated"] else "asks for no token: its network is trusted"
        yield NodeFinding(
            good=health["authenticated"],
            subject=str(health["address"]),
            what=f"Ray {health['ray']}, {len(launcher.nodes)} nodes; it {token}",
        )
        asked = [_examine_node(launcher, node) for node in launcher.nodes]
        for finding in asyncio.as_completed(asked):
            yield await finding
    finally:
        await launcher.close()


async def _examine_node(launcher: ClusterLauncher, node: NodeRow) -> NodeFinding:
    name = f"doctor-{node.id[:12]}"
    try:
        host = await launcher.place(name, WorkerBundle(cpus=0, gpus=0, only_on=node.id))
    except ARTError as error:
        return NodeFinding(good=False, subject=node.address, what=str(error))
    own, python = launcher.shelf_url, platform.python_version()
    try:
        back = await host.reach(own, _REACH_S)
        if not back.reached:
            what = f"it does not reach this machine at {own} ({back.error}): open its ports, or give --host"
            return NodeFinding(good=False, subject=node.address, what=what)
        if host.address.python != python:
            what = f"it has Python {host.address.python}, and this machine {python}: use one version"
            return NodeFinding(good=False, subject=node.address, what=what)
        has = describe_amounts(node.totals) or "no room for workers"
        what = f"{has}; version {version(DISTRIBUTION)}, Python {python}; reached both ways"
        return NodeFinding(good=True, subject=node.address, what=what)
    except ARTError as error:
        what = f"this machine does not reach it at {host.address.url}: {error}"
        return NodeFinding(good=False, subject=node.address, what=what)
    finally:
        await host.close()
        await launcher.release(name)

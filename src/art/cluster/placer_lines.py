"""The lines between the server and its placer, and what a host is told: one JSON object a line.

    server -> placer    {"address": ..., ...}                     once, at the start
    placer -> server    {"ready": true, "node": ...}              or {"ready": false, "error": ...}
    server -> placer    {"id": 7, "place": {...}}                 or `release`, `sweep`
    placer -> server    {"id": 7, "placed": {...}}                or `released`, `error`
    placer -> server    {"nodes": [...]}                          whenever they change

A placer that is started again is told what is still open once more: placing has the same outcome twice.
"""

from __future__ import annotations

from pydantic import Field

from art.cluster.plan import NodeRow, WorkerBundle
from art.cluster.shelf_app import ShelfAddress
from art.wire.engine import EngineErrorBody
from art.wire.records import Strict


class PlacerStart(Strict):
    """The first line."""

    address: str
    host: str | None
    trust_network: bool


class PlacerReady(Strict):
    """The answer to it."""

    ready: bool
    error: str = ""
    refused: bool = False
    """The settings are at fault: starting it again is of no use."""
    node: str = ""
    """The address of this machine in the cluster."""
    node_id: str = ""
    cluster: str = ""
    """The address of the head."""
    ray: str = ""
    authenticated: bool = False


class HostOrder(Strict):
    """The order to the host of one worker, as JSON."""

    nonce: str
    """Tells this host from one that had its name before."""
    key: str = Field(repr=False)
    """Of its routes."""
    version: str
    """Of this package, at the server."""
    lease: float
    shelf: str | None = None
    shelf_bytes: int


class HostAddress(Strict):
    """The address of a host; its key is the one that the server has given it."""

    nonce: str
    url: str
    node: str
    """The node's address."""
    node_id: str
    shelf: ShelfAddress
    pid: int
    version: str
    python: str


class PlaceOrder(Strict):
    """Start the host of a worker on a node that has room, or find it."""

    name: str
    """The actor's."""
    bundle: WorkerBundle
    host: HostOrder
    deadline: float


class PlacerOrder(Strict):
    """A line for the placer; one of its orders is set."""

    id: int
    place: PlaceOrder | None = None
    release: str | None = None
    """The name of an actor that is to end."""
    sweep: str | None = None
    """The beginning of the names of actors that are to end."""


class PlacerLine(Strict):
    """A line of the placer."""

    id: int | None = None
    placed: HostAddress | None = None
    released: list[str] | None = None
    error: EngineErrorBody | None = None
    nodes: list[NodeRow] | None = None

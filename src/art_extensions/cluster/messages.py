"""What the server, its placer and the hosts on the nodes tell each other, as JSON.

Server and placer, one object a line:

    server -> placer    {"address": ..., ...}                     once, at the start
    placer -> server    {"ready": true, "node": ...}              or {"ready": false, "error": ...}
    server -> placer    {"id": 7, "place": {...}}                 or `release`, `sweep`
    placer -> server    {"id": 7, "placed": {...}}                or `released`, `error`
    placer -> server    {"nodes": [...]}                          whenever they change

A placer that is started again is told what is still open once more: placing has the same outcome twice.

Server and host, over HTTP under the host's key:

    GET  /life      HostNews, a line each: signs of life, health, the log, the end; never ends by itself
    POST /lease     the server lives
    POST /start     StartOrder -> Started: the worker, once it serves
    POST /stacks    the worker's stacks go to its log
    POST /stop      the worker ends in order, then the host
    POST /kill      both end at once
    POST /reach     ReachOrder -> Reached: whether the node reaches an address
    and the routes of the node's shelf (`art_extensions.cluster.shelf_app`)
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from art.wire.engine import EngineErrorBody
from art.wire.records import Strict
from art_extensions.cluster.plan import NodeRow, WorkerBundle
from art_extensions.cluster.shelf_app import ShelfAddress


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
    """Whether the settings are at fault: starting it again is of no use."""
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
    """A random text that tells this host from one that had its name before."""
    key: str = Field(repr=False)
    """The key of the host's routes."""
    version: str
    """The server's version of this package."""
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
    """The actor's name."""
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


class StartOrder(Strict):
    """The worker to start, as a `WorkerSpec` without what belongs to the server's machine."""

    name: str
    arguments: list[str]
    """The arguments of the node's interpreter."""
    config: dict[str, Any]
    copies: int = 1
    start_deadline: float
    health_interval: float
    health_deadline: float
    stop_deadline: float


class Started(Strict):
    """A worker that serves."""

    url: str
    key: str = Field(repr=False)
    pid: int


class HostNews(Strict):
    """A line of a host's life. What is None has not changed."""

    log: str | None = None
    """What the worker wrote since the line before."""
    health: dict[str, Any] | None = None
    """What its health route said."""
    health_age: float | None = None
    """Seconds since the newest health."""
    trouble: str | None = None
    """The error of its health route."""
    ended: str | None = None
    """How the worker ended."""


class ReachOrder(Strict):
    """Try to connect."""

    url: str
    timeout: float = 5.0


class Reached(Strict):
    """The answer: whether it did, and what kept it from it."""

    reached: bool
    error: str = ""

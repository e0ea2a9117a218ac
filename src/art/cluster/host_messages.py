"""What the server asks of a host, and what the host tells it: JSON over HTTP, under the host's key.

GET  /life      HostNews, a line each: signs of life, health, the log, the end; never ends by itself
POST /lease     the server lives
POST /start     StartOrder -> Started: the worker, once it serves
POST /stacks    the worker's stacks go to its log
POST /stop      the worker ends in order, then the host
POST /kill      both end at once
POST /reach     ReachOrder -> Reached: whether the node reaches an address
and the routes of the node's shelf (`art.cluster.shelf_app`)
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from art.wire.records import Strict


class StartOrder(Strict):
    """The worker to start, as a `WorkerSpec` without what belongs to the server's machine."""

    name: str
    arguments: list[str]
    """Of the node's interpreter."""
    config: dict[str, Any]
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
    """Its health route failed."""
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

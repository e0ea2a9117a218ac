"""What a server counts while it works, for `GET /metrics`: plain numbers, a few microseconds a request.

Labels are bounded: routes are templates, tenants share one label, and so do the operator's models beyond the
first `MOST_MODELS`. One event loop owns all of it.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from art.server.catalog import Target
from art.server.http import Event, Send
from art.server.tenancy import tenant_of

NO_ROUTE = "(none)"
"""The route that is counted for a request refused before its route was known."""
CLIENT_GONE = 499
"""Status of a request whose client went away before there was one."""
BASE, TENANTS, OTHERS = "(base)", "(tenants)", "(others)"
"""Models that have no label of their own. No name of a model holds a parenthesis."""
MOST_MODELS = 100

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""The bounds of the histogram in seconds, from a lookup to an agent's long reply."""
LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_LAG_EVERY = 0.5
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})


class Histogram:
    """The number of values up to each bound, and their sum.

    >>> one = Histogram((1.0, 5.0)); one.add(0.5); one.add(9.0); one.cumulative()
    [('1.0', 1), ('5.0', 1), ('+Inf', 2)]
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Each bound as Prometheus spells it, with the values up to it."""
        return list(zip([*map(str, self._bounds), "+Inf"], accumulate(self._counts), strict=True))


class CountedRequest:
    """One request while it is answered."""

    __slots__ = ("begun", "method", "route", "status")

    def __init__(self, method: str) -> None:
        self.method = method if method in _METHODS else "other"
        self.route = NO_ROUTE
        self.status = CLIENT_GONE
        self.begun = time.perf_counter()

    def count_status(self, send: Send) -> Send:
        """Returns `send`, which also notes the status."""

        async def counted_send(event: Event) -> None:
            if event["type"] == "http.response.start":
                self.status = event["status"]
            await send(event)

        return counted_send


class RequestCounts:
    """Requests by route, method and status, how long they took, and how many are being answered."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.ended: Counter[tuple[str, str, int]] = Counter()
        self.seconds: dict[tuple[str, str], Histogram] = {}
        """The seconds from a request's head to the last byte of its reply, by route and method."""

    def begin(self, method: str) -> CountedRequest:
        """A request came; `end` must follow."""
        self.in_flight += 1
        return CountedRequest(method)

    def end(self, seen: CountedRequest) -> None:
        """Counts a request as ended, answered or not."""
        self.in_flight -= 1
        self.ended[seen.route, seen.method, seen.status] += 1
        histogram = self.seconds.get((seen.route, seen.method))
        if histogram is None:
            histogram = self.seconds[seen.route, seen.method] = Histogram(REQUEST_SECONDS)
        histogram.add(time.perf_counter() - seen.begun)


class ModelLabels:
    """The label of each model: the first that ask keep theirs."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def label_of(self, project: str | None, name: str) -> str:
        """`project/name` of an operator's model, or what stands for it."""
        if project is None:
            return BASE
        if tenant_of(project) is not None:
            return TENANTS
        label = f"{project}/{name}"
        if label not in self._known:
            if len(self._known) >= MOST_MODELS:
                return OTHERS
            self._known.add(label)
        return label


class TokenCounts:
    """Tokens that engines were asked to read, and that they sampled, by base model and model."""

    def __init__(self, labels: ModelLabels | None = None) -> None:
        self._labels = labels or ModelLabels()
        self.prompt: Counter[tuple[str, str]] = Counter()
        self.sampled: Counter[tuple[str, str]] = Counter()

    def count(self, target: Target, *, prompt: int = 0, sampled: int = 0) -> None:
        """A completion of this model ended, or was broken off."""
        label = target.base_model, self._labels.label_of(target.project, target.name)
        self.prompt[label] += prompt
        self.sampled[label] += sampled


class LoopLag:
    """The delay of the event loop, which every request waits beside its own work."""

    def __init__(self) -> None:
        self.seconds = Histogram(LAG_SECONDS)

    async def watch(self) -> None:
        """Measures the lag until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_EVERY
            await asyncio.sleep(_LAG_EVERY)
            self.seconds.add(max(0.0, loop.time() - due))


class Counts:
    """All counters of one server."""

    def __init__(self) -> None:
        self.labels = ModelLabels()
        self.requests = RequestCounts()
        self.tokens = TokenCounts(self.labels)
        self.lag = LoopLag()
        self.left_out: Counter[tuple[str, str]] = Counter()
        """Parts of requests that did not act, by route and kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerCounts:
    """One worker process, as its supervisor knows it."""

    base_model: str
    role: str
    """`engine` or `trainer`."""
    replica: int
    up: bool
    restarts: int
    health: Mapping[str, Any]
    """Its newest health reply: empty until there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlCounts:
    """The counters of models, jobs and workers."""

    jobs: Mapping[str, int] = field(default_factory=dict)
    """The number of jobs by state."""
    workers: Sequence[WorkerCounts] = ()
    on_hold: Mapping[str, int] = field(default_factory=dict)
    """Requests that wait for an engine of a base model: all of them sleep, or are started again."""

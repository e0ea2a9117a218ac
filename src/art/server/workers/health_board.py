"""The newest health of many workers on one board: posted by who sees it, read by nobody but on trouble.

    a host of a cluster, or a thread of ours       the server's loop
    asks its workers                          ->   board.post({url: health, url: health, ...})
                                                   trouble, a stall or silence  ->  that worker's supervisor

Asking a worker costs the loop about a millisecond; a posted health costs it microseconds. `ProbingBoard` asks
by itself, from a thread, where a machine has many workers. `StallWatch` reads from the health replies
whether a worker that answers still gets anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from art.engine.replicas.fan_out import call_each
from art.errors import WorkerError, WorkerStalledError
from art.process.resources import no_tls
from art.process.worker import RunningWorker

PROBE_SECONDS = 5.0
"""A worker that does not answer for so long is asked again in the next round; its silence goes on."""

Health = Mapping[str, Any]


class StallWatch:
    """Watches `error`, `running` and `steps` of health replies; workers without these are never suspected."""

    def __init__(self, worker: str, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`worker`: how messages call it. `deadline`: seconds without a step while requests are running."""
        self._worker = worker
        self._deadline = deadline
        self._clock = clock
        self._steps: object = None
        self._since = clock()

    def check(self, health: Health) -> None:
        """Raises WorkerError (it says itself that it is broken), WorkerStalledError (it makes no steps)."""
        if health.get("error"):
            raise WorkerError(f"{self._worker} is broken: {health['error']}")
        now, steps = self._clock(), health.get("steps")
        if not health.get("running") or steps != self._steps:
            self._steps, self._since = steps, now
        elif steps is not None and now - self._since > self._deadline:
            raise WorkerStalledError(
                f"{self._worker} has {health['running']} running requests and made no step for "
                f"{self._deadline:g} s; its log holds its stacks"
            )


@dataclass(kw_only=True, slots=True, eq=False)
class WatchedWorker:
    """A worker on the board, and who is told of it."""

    label: str
    url: str
    key: str = field(repr=False)
    interval: float
    """Seconds between two reports."""
    deadline: float
    """Seconds of silence, or without a step, after which it has stalled."""
    on_health: Callable[[Health], None]
    on_trouble: Callable[[WorkerError], None]


@dataclass(kw_only=True, slots=True, eq=False)
class _Line:
    worker: WatchedWorker
    stalls: StallWatch
    newest: float


class HealthBoard:
    """The workers that are watched, by their addresses. One event loop owns it."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def watch(
        self,
        worker: RunningWorker,
        on_health: Callable[[Health], None],
        on_trouble: Callable[[WorkerError], None],
        *,
        interval: float,
        deadline: float,
    ) -> contextlib.AbstractContextManager[None]:
        """Watches a running worker until the block ends: see `WatchedWorker`."""
        return self.watching(
            WatchedWorker(
                label=worker.label,
                url=worker.url,
                key=worker.key,
                interval=interval,
                deadline=deadline,
                on_health=on_health,
                on_trouble=on_trouble,
            )
        )

    @contextlib.contextmanager
    def watching(self, worker: WatchedWorker) -> Iterator[None]:
        """Watch a worker until the block ends. Its silence counts from now on."""
        loop = asyncio.get_running_loop()
        stalls = StallWatch(worker.label, worker.deadline, loop.time)
        self._lines[worker.url] = _Line(worker=worker, stalls=stalls, newest=loop.time())
        if self._sweep is None:
            self._sweep = loop.call_later(worker.interval, self._find_silent, worker.interval)
        try:
            yield
        finally:
            if (line := self._lines.get(worker.url)) is not None and line.worker is worker:
                del self._lines[worker.url]

    def post(self, reports: Mapping[str, Health | WorkerError]) -> None:
        """Take the reports of some workers, by their addresses. Reports of workers that were replaced are
        dropped.
        """
        now = asyncio.get_running_loop().time()
        for url, report in reports.items():
            if (line := self._lines.get(url)) is None:
                continue
            line.newest = now
            if isinstance(report, WorkerError):
                line.worker.on_trouble(report)
                continue
            line.worker.on_health(report)
            try:
                line.stalls.check(report)
            except WorkerError as error:
                line.worker.on_trouble(error)

    def _find_silent(self, interval: float) -> None:
        """Looks at all of them, once an interval, for those of which nothing was posted for too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for line in list(self._lines.values()):
            if now - line.newest > line.worker.deadline:
                line.newest = now
                line.worker.on_trouble(
                    WorkerStalledError(
                        f"nothing was heard of {line.worker.label} for {line.worker.deadline:g} s: it is "
                        "stuck, or its machine cannot be reached"
                    )
                )
        self._sweep = loop.call_later(interval, self._find_silent, interval) if self._lines else None


class ProbingBoard(HealthBoard):
    """A board that asks its workers itself, in a thread, a bounded number at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._asked: dict[str, WatchedWorker] = {}
        """The workers that the thread asks, by address; the thread ends when there are none."""
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watching(self, worker: WatchedWorker) -> Iterator[None]:
        """See `HealthBoard.watching`."""
        with super().watching(worker):
            with self._lock:
                self._asked[worker.url] = worker
                if self._thread is None:
                    loop = asyncio.get_running_loop()
                    self._thread = threading.Thread(
                        target=lambda: asyncio.run(self._ask_all(loop)), name="health", daemon=True
                    )
                    self._thread.start()
            try:
                yield
            finally:
                with self._lock:
                    if self._asked.get(worker.url) is worker:
                        del self._asked[worker.url]

    async def _ask_all(self, owner: asyncio.AbstractEventLoop) -> None:
        """Rounds of questions in the thread's own loop, until nobody is watched."""
        async with httpx.AsyncClient(
            trust_env=False, verify=no_tls(), timeout=PROBE_SECONDS, limits=httpx.Limits(max_connections=None)
        ) as http:
            while True:
                with self._lock:
                    workers = list(self._asked.values())
                    if not workers:
                        self._thread = None
                        return
                asked = {number: partial(_probe, http, worker) for number, worker in enumerate(workers)}
                answers = await call_each(asked)
                reports = {
                    workers[number].url: answer
                    for number, answer in answers.items()
                    if answer is not None and not isinstance(answer, BaseException)
                }
                try:
                    owner.call_soon_threadsafe(self.post, reports)
                except RuntimeError:  # the owner's loop has ended
                    return
                await asyncio.sleep(min(worker.interval for worker in workers))


async def _probe(http: httpx.AsyncClient, worker: WatchedWorker) -> Health | WorkerError | None:
    """Returns the health of a worker, its trouble, or None where it did not answer yet."""
    try:
        reply = await http.get(f"{worker.url}/health", headers={"Authorization": f"Bearer {worker.key}"})
        reply.raise_for_status()
        return dict(reply.json())
    except httpx.TimeoutException:
        return None
    except (httpx.HTTPError, ValueError) as error:
        return WorkerStalledError(f"{worker.label} failed its health check: {error!r}")

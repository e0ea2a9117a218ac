"""Rows on their way to a tracker that may be slow, down or wrong: a thread of its own, a bounded queue.

A row that a healthy tracker takes at once has arrived when `put` returns, so a killed program loses at most
the row it was writing. Where a tracker takes longer, `put` stops waiting for it until it has caught up. What
a tracker refuses is told once; the rows are in `history.jsonl` in any case.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

from art.tracking.sinks.sink import ReportedRun, Sink
from art.wire.nested import deep_merge

PATIENCE_S = 5.0
"""How long a row may hold up the training, until the tracker has caught up again."""
OPENING_S = 30.0
"""The same for the first row: the library is loaded, and a server found or a database made."""
MOST_WAITING = 10_000
"""Rows and tables. Beyond that the oldest are dropped."""
CLOSING_S = 10.0
"""How long the end of a program waits for all its trackers."""

_log = logging.getLogger(__name__)


class Delivery:
    """One run at one tracker. Safe to use from several threads. No method raises what the tracker raised."""

    def __init__(self, name: str, make: Callable[[], Sink], run: ReportedRun, *, most: int = MOST_WAITING):
        self._name, self._make, self._run, self._most = name, make, run, most
        self._sink: Sink | None = None
        self._config: dict[str, Any] = {}
        self._waiting: deque[Callable[[Sink], None]] = deque()
        self._put, self._done, self._failed, self._dropped = 0, 0, 0, 0
        self._late = self._closing = False
        self._warned: set[str] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def configure(self, config: Mapping[str, Any]) -> None:
        """Adds to the run's config, now or when it is opened."""
        with self._changed:
            if not config or (merged := deep_merge(self._config, config)) == self._config:
                return
            self._config = merged
        self.put(methodcaller("config", merged))

    def put(self, call: Callable[[Sink], None], patience_s: float | None = None) -> None:
        """Hands the tracker a call, and waits for it as long as the tracker keeps up."""
        with self._changed:
            if patience_s is None:
                patience_s = OPENING_S if self._sink is None else PATIENCE_S
            if self._closing:
                return
            if len(self._waiting) >= self._most:
                self._waiting.popleft()
                self._done += 1
                self._dropped += 1
                self._warn_once("dropped", f"is {self._most} rows late: the oldest are not sent to it")
            self._waiting.append(call)
            self._put += 1
            mine = self._put
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"art-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            if not self._late and not self._changed.wait_for(lambda: self._done >= mine, patience_s):
                self._late = True
                self._warn_once("late", f"takes over {patience_s:g} s: the run goes on, rows wait")

    def begin_closing(self) -> None:
        """Takes no further rows; what waits is written, and the run ends."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, deadline: float) -> None:
        """Waits for the end of the run, until a moment of `time.monotonic()`."""
        self.begin_closing()
        thread = self._thread
        if thread is None:
            return
        thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            if thread.is_alive() and (left := self._put - self._done):
                _log.warning(
                    "%s: %d rows of %r had not arrived when the program ended; they are in history.jsonl",
                    *(self._name, left, self._run.name),
                )

    @property
    def failed(self) -> int:
        """The number of calls that the tracker refused or that were dropped."""
        with self._changed:
            return self._failed + self._dropped

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    break
                call = self._waiting.popleft()
            error = self._try(call)
            with self._changed:
                self._done += 1
                self._failed += error is not None
                self._late = self._late and bool(self._waiting)
                self._changed.notify_all()
        if self._sink is not None:
            self._try(methodcaller("close"))

    def _try(self, call: Callable[[Sink], None]) -> Exception | None:
        try:
            if self._sink is None:
                sink = self._make()
                with self._changed:
                    config = self._config
                sink.open(self._run, config)
                self._sink = sink
            call(self._sink)
        except Exception as error:  # noqa: BLE001 - trackers raise errors of many kinds; none may end a training
            with self._changed:
                self._warn_once("failed", f"failed, the run goes on without it: {_described(error)}")
            return error
        return None

    def _warn_once(self, kind: str, what: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("%s %s (told once; all rows are in history.jsonl)", self._name, what)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

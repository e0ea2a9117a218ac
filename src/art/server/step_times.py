"""Where the seconds of a model's steps go: each moment from the end of one job to the end of the next belongs
to one part.

    the job before | client  sampling  client | queue | prepare  gradient  save  canary  load  canary |

What the program does while no request of the model is being sampled is `client`. While a job waits for its
turn or runs, what is sampled beside it for later steps is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from art.wire.jobs import STEP_PARTS, StepPart, part_metric


class StepClock:
    """One model's. All calls come from one event loop.

    >>> seconds = iter([0.0, 1.0, 4.0, 6.0, 9.0, 9.5])
    >>> clock = StepClock(lambda: next(seconds))
    >>> with clock.sampling():
    ...     pass
    >>> with clock.part("prepare"):
    ...     pass
    >>> found = clock.take()
    >>> found["time/step_client_s"], found["time/step_sampling_s"], found["time/step_prepare_s"]
    (3.5, 3.0, 3.0)
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since = now()
        self._seconds: dict[StepPart, float] = dict.fromkeys(STEP_PARTS, 0.0)
        self._sampled = 0
        self._queued = 0
        self._working: list[StepPart] = []
        """The part of the running job, and those around it."""

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Counts the block as sampling: one completion, from its request to the engine to its last token."""
        self._credit()
        self._sampled += 1
        try:
            yield
        finally:
            self._credit()
            self._sampled -= 1

    @contextmanager
    def part(self, part: StepPart) -> Iterator[None]:
        """Counts the block as this part of a job. An inner block takes its time from the outer one."""
        self._credit()
        self._working.append(part)
        try:
            yield
        finally:
            self._credit()
            self._working.remove(part)

    def queue(self, more: int) -> None:
        """So many jobs more wait for their turn."""
        self._credit()
        self._queued = max(0, self._queued + more)

    def take(self) -> dict[str, float]:
        """Returns the seconds of each part since the last call, by the names of their metrics."""
        self._credit()
        taken, self._seconds = self._seconds, dict.fromkeys(STEP_PARTS, 0.0)
        return {part_metric(part): seconds for part, seconds in taken.items()}

    def _credit(self) -> None:
        now = self._now()
        self._seconds[self._current()] += now - self._since
        self._since = now

    def _current(self) -> StepPart:
        if self._working:
            return self._working[-1]
        if self._queued:
            return "queue"
        return "sampling" if self._sampled else "client"

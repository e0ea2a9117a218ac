"""Does a worker that answers still get anywhere? Read from its health replies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from art.errors import WorkerError, WorkerStalledError


class Pulse:
    """Watches `error`, `running` and `steps` of health replies; workers without these are never suspected."""

    def __init__(self, worker: str, deadline: float) -> None:
        """`worker`: how messages call it. `deadline`: seconds without a step while requests are running."""
        self._worker = worker
        self._deadline = deadline
        self._steps: object = None
        self._since = time.monotonic()

    def check(self, health: Mapping[str, Any]) -> None:
        """Raises WorkerError (it says itself that it is broken), WorkerStalledError (it makes no steps)."""
        if health.get("error"):
            raise WorkerError(f"worker {self._worker} is broken: {health['error']}")
        now, steps = time.monotonic(), health.get("steps")
        if not health.get("running") or steps != self._steps:
            self._steps, self._since = steps, now
        elif steps is not None and now - self._since > self._deadline:
            raise WorkerStalledError(
                f"worker {self._worker} has {health['running']} running requests and made no step for "
                f"{self._deadline:g} s; its log holds its stacks"
            )

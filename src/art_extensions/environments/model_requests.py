"""The requests that somebody else's environment makes of the model, counted: how long it may still take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from art.environments.adapters.environment import REQUEST_S
from art.environments.tasks import turn_seed


@dataclass
class ModelRequests:
    """The requests of one rollout to the model. All of them are made in one loop."""

    seed: int | None
    listener: Any
    """Hears the completions; None: nobody does."""
    count: int = 0
    open: int = 0
    answered: int = 0
    changed_at: float = field(default_factory=time.monotonic)
    error: Exception | None = None
    """What the last request that failed raised."""

    @contextmanager
    def asking(self) -> Iterator[dict[str, Any]]:
        """Gives the arguments of a request, which runs inside the block."""
        from art.recording.listeners import listening

        seeded = {} if self.seed is None else {"seed": turn_seed(self.seed, self.count)}
        self.count += 1
        self.open += 1
        try:
            with listening(self.listener):
                yield {"timeout": REQUEST_S, **seeded}
            self.answered += 1
        except Exception as error:
            self.error = error
            raise
        finally:
            self.open -= 1
            self.changed_at = time.monotonic()

    def left_s(self, deadline_s: float) -> float:
        """Returns how long the environment may still take, in seconds, if no request begins."""
        return deadline_s if self.open else self.changed_at + deadline_s - time.monotonic()

"""How fast the core is that a test runs on: a bound on computed time holds on a slow and busy machine, too.

A test shows that work is bounded; how fast it is, the benches show.
"""

from __future__ import annotations

import time

MARGIN = 4.0
"""So many times its seconds a piece of work may take in a test: caches are shared with other programs."""
PIECE_S = 0.006
"""Seconds of `_compute` where the bounds were set: Python 3.11 on an otherwise idle core of an AMD EPYC."""
_TRIES = 3


class CoreSpeed:
    """Measured in the calling thread when it is made, and again when it is asked: the slower one counts."""

    def __init__(self) -> None:
        self._before = slowness()

    def allowed(self, seconds: float) -> float:
        """Returns what a test allows for work that takes so many seconds at most where the bound was set."""
        return seconds * MARGIN * max(self._before, slowness())


def slowness() -> float:
    """Returns how many times longer than where the bounds were set a fixed piece of work takes; 1 at least.

    The quickest of a few tries: what stops a thread for a moment does not count.
    """
    return max(1.0, min(_compute() for _ in range(_TRIES)) / PIECE_S)


def _compute() -> float:
    """Returns the seconds of the thread that pure Python takes for texts and a dictionary."""
    begun = time.thread_time()
    seen: dict[str, int] = {}
    for number in range(20_000):
        key = f"{number % 997:x}"
        seen[key] = seen.get(key, 0) + len(key)
    return time.thread_time() - begun

"""Who waits: each owner's requests in their order, and whose turn is next.

Owners are compared by the tokens that were forwarded for them while they had requests here; the one with the
fewest is next (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", 2024).
An owner that comes begins where the one with the fewest stands: time spent away earns nothing.

Worked example: owner `a` has sent 500 requests of 100 tokens, then `b` sends one. `a` stands at 20,000, `b`
begins there too, and with `a`'s next request (100 more) `b` is the one with fewer: it waits for one request,
not for 500.
"""

from __future__ import annotations

from collections import Counter

from art.engine.builtin.sequence import Sequence
from art.process.fair_queue import FairQueue

SAMPLED_COST = 2
"""A sampled token costs as much as so many of a prompt."""


class SequenceQueue(FairQueue[Sequence]):
    """Waiting requests by owner. Counters are kept of owners with open requests, waiting or running."""

    def __init__(self) -> None:
        super().__init__()
        self._open: Counter[str] = Counter()
        self._served: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._owners = 0

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._queues.get(sequence.owner, ())

    @property
    def owners(self) -> int:
        """Owners with open requests."""
        return len(self._open)

    def number(self, owner: str) -> int:
        """An owner with open requests, as a number."""
        return self._numbers[owner]

    def open(self, sequence: Sequence) -> None:
        """A request arrives, and begins to wait."""
        owner = sequence.owner
        if owner not in self._open:
            self._served[owner] = min(self._served.values(), default=0)
            self._owners += 1
            self._numbers[owner] = self._owners
        self._open[owner] += 1
        self.put(owner, sequence)

    def charge(self, owner: str, tokens: int) -> None:
        """So many tokens were forwarded for an owner."""
        self._served[owner] += tokens

    def close(self, sequence: Sequence) -> None:
        """An open request has ended, however it ended; one that waits is removed separately."""
        self._open[sequence.owner] -= 1
        if not self._open[sequence.owner]:
            for table in (self._open, self._served, self._numbers):
                del table[sequence.owner]

    def _next_owner(self) -> str:
        return min(self._queues, key=self._served.__getitem__)

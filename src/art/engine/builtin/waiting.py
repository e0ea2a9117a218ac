"""Who waits: each owner's requests in their order, and whose turn is next.

Owners are compared by the tokens that were forwarded for them while they had requests here; the one with the
fewest is next (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", 2024).
An owner that comes begins where the one with the fewest stands: time spent away earns nothing.

Worked example: owner `a` has sent 500 requests of 100 tokens, then `b` sends one. `a` stands at 20,000, `b`
begins there too, and with `a`'s next request (100 more) `b` is the one with fewer: it waits for one request,
not for 500.
"""

from __future__ import annotations

from collections import Counter, deque

from art.engine.builtin.sequence import Sequence

SAMPLED_COST = 2
"""A sampled token costs as much as so many of a prompt."""


class Waiting:
    """Waiting requests by owner. Counters are kept of owners with open requests, waiting or running."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Sequence]] = {}
        self._open: Counter[str] = Counter()
        self._served: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._count = self._owners = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._queues.get(sequence.owner, ())

    @property
    def owners(self) -> int:
        """Owners with open requests."""
        return len(self._open)

    def number(self, owner: str) -> int:
        """An owner with open requests, as a number."""
        return self._numbers[owner]

    def come(self, sequence: Sequence) -> None:
        """A request begins to wait."""
        owner = sequence.owner
        if owner not in self._open:
            self._served[owner] = min(self._served.values(), default=0)
            self._owners += 1
            self._numbers[owner] = self._owners
        self._open[owner] += 1
        self._queues.setdefault(owner, deque()).append(sequence)
        self._count += 1

    def put_back(self, sequence: Sequence) -> None:
        """A request was taken too early, or was sent back: it is the first of its owner again."""
        self._queues.setdefault(sequence.owner, deque()).appendleft(sequence)
        self._count += 1

    def take(self) -> Sequence | None:
        """The first request of the owner whose turn it is; None when nobody waits."""
        if not self._queues:
            return None
        owner = min(self._queues, key=self._served.__getitem__)
        sequence = self._queues[owner].popleft()
        self._forget_empty(owner)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """It does not wait any more; `gone` is told separately."""
        self._queues[sequence.owner].remove(sequence)
        self._forget_empty(sequence.owner)

    def charge(self, owner: str, tokens: int) -> None:
        """So many tokens were forwarded for an owner."""
        self._served[owner] += tokens

    def gone(self, sequence: Sequence) -> None:
        """An open request has ended, however it ended."""
        self._open[sequence.owner] -= 1
        if not self._open[sequence.owner]:
            for table in (self._open, self._served, self._numbers):
                del table[sequence.owner]

    def _forget_empty(self, owner: str) -> None:
        self._count -= 1
        if not self._queues[owner]:
            del self._queues[owner]

"""The number of distinct names of a run, in bounded memory: exact at first, then an estimate.

Of more names than `KEPT` those with the smallest hashes are kept. Hashes are even between 0 and 1, so that
the largest kept one tells how many there are (k minimum values: Beyer et al., "On synopses for distinct-value
estimation under multiset operations", SIGMOD 2007, section 3): its standard error is 1.6 %.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from operator import itemgetter

KEPT = 4096
LONGEST = 64
"""Characters; of a longer name a hash is kept."""


class DistinctNames:
    """Names that were added, each once. The count never falls."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._ranks: dict[str, float] = {}
        self._last = 1.0
        """The largest rank that is kept; 1 while all are."""
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """Adds names that may be there already."""
        for given in names:
            name = given if len(given) <= LONGEST else _digest(given, LONGEST // 2).hex()
            rank = int.from_bytes(_digest(name, 8)) / 2**64
            if rank < self._last:
                self._ranks[name] = rank
        if len(self._ranks) > KEPT or (self._last == 1.0 and len(self._ranks) == KEPT):
            self._ranks = dict(heapq.nsmallest(KEPT, self._ranks.items(), key=itemgetter(1)))
            self._last = max(self._ranks.values())

    def count(self) -> int:
        """Returns how many there are: exactly, if they are fewer than `KEPT`."""
        if len(self._ranks) < KEPT:
            return len(self._ranks)
        return max(KEPT, round((KEPT - 1) / self._last))

    def list_names(self) -> list[str]:
        """Returns the names that are kept, sorted: with them another counter goes on."""
        return sorted(self._ranks)


def _digest(name: str, size: int) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=size).digest()

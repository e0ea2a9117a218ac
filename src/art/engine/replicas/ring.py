"""Which replica gets a request, in a time that hardly grows with their number.

    a rollout is named     its home: the first replica clockwise of its hash, on a ring of hashes of replicas
    home has its share     the next replica clockwise that has not: at most `BALANCE` times the mean is taken
    no rollout is named    the least loaded of `DRAWN` replicas

When a replica goes, only its own rollouts move.

Consistent hashing: Karger et al., "Consistent hashing and random trees", STOC 1997; with bounded loads:
Mirrokni, Thorup and Zadimoghaddam, arXiv 1608.01350. The least of a few: Mitzenmacher, "The power of two
choices in randomized load balancing", IEEE Transactions on Parallel and Distributed Systems, 2001.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from art.engine.protocol import Engine, EngineInfo
from art.errors import ARTError

BALANCE = 1.5
"""No replica gets a request for its affinity while it has more than so many times its fair share of them."""
PLACES = 64
"""The number of places of a replica on the ring: with more of them the shares are more alike."""
DRAWN = 8
"""Replicas that are compared for a request without affinity; so few or less are all compared."""


@dataclass(kw_only=True, slots=True, eq=False)
class Replica:
    """The state of one engine in a pool."""

    number: int
    engine: Engine | None = None
    """The last one that was put in this place."""
    up: bool = False
    """Whether it takes requests."""
    info: EngineInfo | None = None
    """The information of the engine at its last start; None before the first start."""
    starts: int = 0
    """How often it came up."""
    adapters: set[str] = field(default_factory=set)
    open: int = 0
    """Requests that it has now."""
    failure: ARTError | None = None
    """Why it will not come back."""

    @property
    def incarnation(self) -> tuple[int, int]:
        """The number that distinguishes this engine from its replacement after a restart."""
        return self.number, self.starts


Fits = Callable[[Replica], bool]
"""Whether a replica that is up may get the request."""


class ReplicaRing:
    """The replicas of a pool, and how many requests they have together."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas
        self._open = sum(replica.open for replica in replicas)
        self._up = sum(replica.up for replica in replicas)
        self._drawn = random.Random(0)
        places = sorted(
            (_hash(f"{replica.number}/{place}"), replica) for replica in replicas for place in range(PLACES)
        )
        self._points = [point for point, _ in places]
        self._owners = [replica for _, replica in places]

    def set_up(self, replica: Replica, up: bool) -> None:
        """Let a replica take requests, or no more of them."""
        self._up += up - replica.up
        replica.up = up

    def begin(self, replica: Replica) -> None:
        """Count a request that a replica gets."""
        replica.open += 1
        self._open += 1

    def end(self, replica: Replica) -> None:
        """Count a request off."""
        replica.open -= 1
        self._open -= 1

    def choose(self, affinity: str | None, fits: Fits) -> Replica | None:
        """Returns the replica for a request, of those that are up and fit; None if none does."""
        if not self._up:
            return None
        if affinity is None:
            return self._least_loaded(fits)
        mean = (self._open + 1) / self._up
        most = max(int(BALANCE * mean), int(mean) + 1)  # the second leaves room where loads are small
        least: Replica | None = None
        for replica in self._clockwise(affinity):
            if replica.up and fits(replica):
                if replica.open < most:
                    return replica
                if least is None or replica.open < least.open:
                    least = replica
        return least

    def _clockwise(self, affinity: str) -> Iterator[Replica]:
        """Yields each replica once, in the order in which the ring has them behind a hash."""
        at, seen, owners = bisect_right(self._points, _hash(affinity)), set[int](), self._owners
        for place in range(at, at + len(owners)):
            replica = owners[place % len(owners)]
            if replica.number not in seen:
                seen.add(replica.number)
                yield replica
                if len(seen) == len(self.replicas):
                    return

    def _least_loaded(self, fits: Fits) -> Replica | None:
        for among in (self._drawn.sample(self.replicas, min(DRAWN, len(self.replicas))), self.replicas):
            found = [replica for replica in among if replica.up and fits(replica)]
            if found:
                return min(found, key=_load)
        return None


def _load(replica: Replica) -> tuple[int, int]:
    return replica.open, replica.number


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())

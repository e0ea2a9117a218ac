"""One replica of an engine, and which of several gets a request."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from art.engine.protocol import Engine, EngineInfo
from art.errors import ARTError

BALANCE = 1.5
"""No replica gets a request for its affinity while it has more than so many times its fair share of them."""


@dataclass(kw_only=True, slots=True, eq=False)
class Replica:
    """What a pool knows of one of its engines."""

    number: int
    engine: Engine | None = None
    """The last one that was put in this place."""
    up: bool = False
    """Whether it takes requests."""
    info: EngineInfo | None = None
    """As of its last start."""
    starts: int = 0
    """How often it came up."""
    adapters: set[str] = field(default_factory=set)
    open: int = 0
    """Requests that it has now."""
    failure: ARTError | None = None
    """Why it will not come back."""

    @property
    def life(self) -> tuple[int, int]:
        """Tells this engine from the one that replaces it after a restart."""
        return self.number, self.starts


def choose(replicas: Sequence[Replica], affinity: str | None) -> Replica:
    """The replica for a request: the least loaded, or the one where its rollout is at home.

    A rollout ranks the replicas by a hash of both names (rendezvous hashing: Thaler and Ravishankar, "Using
    name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking, 1998), so that when one
    goes, only its own rollouts move. It takes the first whose load is below `BALANCE` times the mean
    (consistent hashing with bounded loads: Mirrokni, Thorup and Zadimoghaddam, arXiv 1608.01350).
    """
    if len(replicas) == 1:
        return replicas[0]
    if affinity is None:
        return min(replicas, key=lambda replica: replica.open)
    most = math.ceil(BALANCE * (sum(replica.open for replica in replicas) + 1) / len(replicas))
    free = [replica for replica in replicas if replica.open < most]
    return max(free, key=lambda replica: _weight(affinity, replica.number))


def _weight(affinity: str, number: int) -> bytes:
    return hashlib.blake2b(f"{number}/{affinity}".encode(), digest_size=8).digest()

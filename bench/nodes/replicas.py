"""What choosing a replica costs, and how even the loads are, for 4 to 1,000 replicas.

ring    `art.engine.replicas.ring`: consistent hashing with bounded loads
scan    rendezvous hashing with the same bound over a list of all replicas, in a few lines here

Both choose for the same rollouts. Time is this
process's CPU time, the least of some repetitions, taken in turns. Balance is the highest load over the mean
after one request of each rollout, all of them still open.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence

from art.engine.replicas.ring import BALANCE, Replica, ReplicaRing
from bench.rows import Row, write_rows

COUNTS = (4, 64, 256, 1000)
REPETITIONS = 5
MOST_MICROSECONDS = 15.0
ROLLOUTS_A_REPLICA = 20


def scan(replicas: Sequence[Replica], affinity: str) -> Replica:
    """Rendezvous hashing: every replica is hashed for every request."""
    most = math.ceil(BALANCE * (sum(one.open for one in replicas) + 1) / len(replicas))
    free = [one for one in replicas if one.up and one.open < most]

    def weight(one: Replica) -> bytes:
        return hashlib.blake2b(f"{one.number}/{affinity}".encode(), digest_size=8).digest()

    return max(free, key=weight)


def microseconds(choose: Callable[[str], object], names: Sequence[str]) -> float:
    """CPU time of one choice."""
    start = time.process_time()
    for name in names:
        choose(name)
    return (time.process_time() - start) / len(names) * 1e6


def measure(count: int) -> list[Row]:
    ring = ReplicaRing([Replica(number=number, up=True) for number in range(count)])
    rollouts = [f"rollout-{number}" for number in range(ROLLOUTS_A_REPLICA * count)]

    def choose(name: str) -> Replica:
        chosen = ring.choose(name, lambda replica: True)
        assert chosen is not None
        return chosen

    for name in rollouts:
        ring.begin(choose(name))
    balance = max(one.open for one in ring.replicas) / ROLLOUTS_A_REPLICA
    few = rollouts[: max(50, 20_000 // count)]
    times = [
        (microseconds(choose, rollouts), microseconds(lambda name: scan(ring.replicas, name), few))
        for _ in range(REPETITIONS)
    ]
    ours, peer = (min(column) for column in zip(*times, strict=True))
    return [
        Row(name=f"{count} replicas, a choice", ours=ours, unit="us", goal=MOST_MICROSECONDS, at_most=True),
        Row(name=f"{count} replicas, by a scan", ours=ours, peer=peer, unit="us", ratio=peer / ours),
        Row(
            name=f"{count} replicas, highest load over the mean",
            ours=balance,
            unit="",
            goal=BALANCE,
            at_most=True,
        ),
    ]


def main() -> None:
    write_rows("replicas", [row for count in COUNTS for row in measure(count)])


if __name__ == "__main__":
    main()

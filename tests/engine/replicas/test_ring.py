"""Which replica gets a request: rollouts stay, loads are bounded, and few move when one goes."""

from __future__ import annotations

from collections import Counter

import pytest

from art.engine.replicas.ring import BALANCE, Replica, ReplicaRing


def ring_of(*loads: int) -> ReplicaRing:
    return ReplicaRing([Replica(number=number, open=load, up=True) for number, load in enumerate(loads)])


def home(ring: ReplicaRing, affinity: str | None, without: frozenset[int] = frozenset()) -> int:
    chosen = ring.choose(affinity, lambda replica: replica.number not in without)
    assert chosen is not None
    return chosen.number


@pytest.mark.parametrize("count", [2, 4, 50])
def test_a_rollout_stays_on_its_replica_and_only_those_of_a_lost_one_move(count: int) -> None:
    ring, names = ring_of(*[0] * count), [f"rollout-{number}" for number in range(100 * count)]
    homes = {name: home(ring, name) for name in names}
    assert {name: home(ring, name) for name in names} == homes
    assert all(40 < share < 190 for share in Counter(homes.values()).values())
    ring.set_up(ring.replicas[1], False)
    moved = {name for name in names if home(ring, name) != homes[name]}
    assert moved == {name for name in names if homes[name] == 1}
    ring.set_up(ring.replicas[1], True)
    assert {name: home(ring, name) for name in names} == homes


@pytest.mark.parametrize("count", [3, 20])
def test_no_replica_is_swamped_by_rollouts(count: int) -> None:
    ring = ring_of(*[0] * count)
    for number in range(100 * count):
        chosen = ring.replicas[home(ring, f"rollout-{number % 2}")]  # two rollouts flood
        ring.begin(chosen)
        mean = (number + 1) / count
        assert chosen.open <= (BALANCE * mean if mean >= 2 else mean + 1)
    for replica in ring.replicas:
        while replica.open:
            ring.end(replica)
    assert home(ring, "rollout-0") == home(ring_of(*[0] * count), "rollout-0"), "they go home again"


def test_requests_without_a_rollout_go_where_there_is_least() -> None:
    assert home(ring_of(5, 2, 9), None) == 1
    assert home(ring_of(5, 2, 9), None, without=frozenset({1})) == 0
    many = ring_of(*[0] * 200)
    for _ in range(4000):
        many.begin(many.replicas[home(many, None)])
    assert max(replica.open for replica in many.replicas) <= BALANCE * 20


@pytest.mark.parametrize("affinity", [None, "rollout"])
def test_what_does_not_fit_or_is_down_gets_none(affinity: str | None) -> None:
    ring = ring_of(0, 0, 0, 0, 0, 0, 0, 0, 0, 50)
    only_one = frozenset(range(9))
    assert home(ring, affinity, without=only_one) == 9, "the only one that fits, busy as it is"
    assert ring.choose(affinity, lambda replica: False) is None
    ring.set_up(ring.replicas[9], False)
    assert ring.choose(affinity, lambda replica: replica.number == 9) is None
    for replica in ring.replicas:
        ring.set_up(replica, False)
    assert ring.choose(affinity, lambda replica: True) is None


def test_of_the_busy_ones_that_fit_the_least_busy_is_taken() -> None:
    ring = ring_of(0, 0, 0, 0, 30, 20, 40)
    assert home(ring, "rollout", without=frozenset(range(4))) == 5

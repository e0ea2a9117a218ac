"""Micro-batches are dealt so that no rank waits long, and every entry is computed once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_policies import games

from art.training.packing.pack import pack
from art.training.packing.runs import Packing
from art.training.ranks.deal import Dealer, deal_out

COSTS = st.lists(st.floats(1, 1000), max_size=30)


@given(costs=COSTS, world=st.integers(1, 6))
def test_every_micro_batch_is_dealt_once_and_no_rank_has_far_more_than_its_part(
    costs: list[float], world: int
) -> None:
    dealt = deal_out(costs, [0.0] * world)
    assert sorted(number for mine in dealt for number in mine) == list(range(len(costs)))
    most = max((sum(costs[number] for number in mine) for mine in dealt), default=0.0)
    # Longest first: at most 4/3 of the best (Graham, 1969), which is at least this.
    best = max([sum(costs) / world, *costs]) if costs else 0.0
    assert most <= best * (4 / 3) + max(costs, default=0.0)


def test_among_equals_the_rank_with_the_least_work_so_far_is_first() -> None:
    """Three micro-batches an update: the odd one goes to another rank each time."""
    batch = games(1, groups=3)
    packing = pack(batch.tree, batch.entries, 40)
    dealers = [Dealer(rank, 2) for rank in range(2)]
    for _ in range(2):
        shares = [dealer.deal(packing) for dealer in dealers]
        assert sorted(number for share in shares for number in share.numbers) == list(
            range(len(packing.micro_batches))
        )
    loads = dealers[0]._load_W
    assert loads == dealers[1]._load_W, "every rank keeps the same book"
    assert max(loads) - min(loads) <= max(len(micro.tokens_T) for micro in packing.micro_batches)


def plan(world: int, budget: int, groups: int = 24) -> tuple[Packing, Dealer]:
    batch = games(3, groups=groups, size=6, turns=4)
    dealer = Dealer(0, world)
    return dealer.plan(lambda room: pack(batch.tree, batch.entries, room), budget), dealer


def slowest(packing: Packing, world: int) -> int:
    return max(Dealer(rank, world).deal(packing).forwarded for rank in range(world))


@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_a_packer_that_knows_the_ranks_keeps_them_busy(world: int) -> None:
    aware, _ = plan(world, 100_000)
    unaware, _ = plan(1, 100_000)
    assert len(unaware.micro_batches) == 1
    assert slowest(aware, world) * world * 0.85 <= aware.lower_bound
    entries = np.sort(np.concatenate([micro.entry_E for micro in aware.micro_batches]))
    assert np.array_equal(entries, np.arange(len(entries)))


def test_one_process_plans_as_ever() -> None:
    batch = games(3)
    alone = Dealer().plan(lambda room: pack(batch.tree, batch.entries, room), 50)
    expected = pack(batch.tree, batch.entries, 50)
    assert [micro.tokens_T.tolist() for micro in alone.micro_batches] == [
        micro.tokens_T.tolist() for micro in expected.micro_batches
    ]
    share = Dealer().deal(alone)
    assert share.numbers == tuple(range(len(alone.micro_batches))) and not list(share.padded)


def test_ranks_with_a_base_in_shards_forward_equally_often() -> None:
    packing, _ = plan(1, 60)
    shares = [Dealer(rank, 4, equal=True).deal(packing) for rank in range(4)]
    passes = {len(share.numbers) + len(list(share.padded)) for share in shares}
    assert len(passes) == 1
    assert all(len(one.tokens_T) == min(len(m.tokens_T) for m in packing.micro_batches)
               for share in shares for one in share.padded)  # fmt: skip

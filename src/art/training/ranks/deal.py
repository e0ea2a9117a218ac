"""One plan of micro-batches, dealt to ranks.

Every rank makes the same plan and takes its own share of it. A tree that is cut into few micro-batches cannot
be dealt evenly, so the room of one is made smaller until the slowest rank has little more than its part; each
cut costs the path to it once more, so it is made no smaller than that.

The longest micro-batch goes first, to the rank with the least work in this update and, among equals, in the
step so far: without that, every update's odd one would go to the same rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from art.training.packing.runs import MicroBatch, Packing

GOOD = 0.98
"""A plan is taken at once when the ranks' work is used to such a share."""
MORE = (0, 1, 2, 3, 5)
"""Micro-batches of a rank that are tried, beyond the fewest that hold its part."""
ROOM = 1.02
"""Over an even part: paths are forwarded again, and the last places stay empty."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Share:
    """The part of a plan that one rank computes."""

    packing: Packing
    """The whole plan."""
    numbers: tuple[int, ...]
    """This rank's micro-batches, by their numbers in the plan."""
    padding: int = 0
    """The number of further forward passes by which all ranks gather a sharded base equally often."""

    @property
    def micro_batches(self) -> Iterator[tuple[int, MicroBatch]]:
        for number in self.numbers:
            yield number, self.packing.micro_batches[number]

    @property
    def forwarded(self) -> int:
        """Returns the tokens of the share."""
        return sum(len(micro.tokens_T) for _, micro in self.micro_batches)

    @property
    def padded(self) -> Iterator[MicroBatch]:
        """Micro-batches to compute for nothing: the plan's shortest, again and again."""
        shortest = min(self.packing.micro_batches, key=lambda micro: len(micro.tokens_T), default=None)
        for _ in range(self.padding if shortest is not None else 0):
            assert shortest is not None
            yield shortest


class Dealer:
    """Deals the plans of one step. Work is counted in tokens: `pair_cost` is what a pair of a query and a key
    costs beside a token's pass through the matrices.
    """

    def __init__(self, rank: int = 0, world: int = 1, *, pair_cost: float = 0.0, equal: bool = False) -> None:
        """equal: all ranks must forward equally often."""
        self._rank, self._world, self._pair_cost, self._equal = rank, world, pair_cost, equal
        self._load_W = [0.0] * world
        """The work of each rank in the step so far, in tokens."""

    def plan(self, pack: Callable[[int], Packing], budget: int) -> Packing:
        """The plan that `pack` makes with the whole budget, or with a smaller one that keeps ranks busy."""
        best = pack(budget)
        if self._world == 1:
            return best
        worst = self._makespan(best)
        even = (best.lower_bound + self._pair_cost * best.pairs_needed) / self._world
        fewest = max(1, math.ceil(ROOM * best.lower_bound / (self._world * budget)))
        for more in MORE:
            room = math.ceil(ROOM * best.lower_bound / (self._world * (fewest + more)))
            if even >= GOOD * worst:
                break
            if room >= budget:
                continue
            tried = pack(room)
            if (makespan := self._makespan(tried)) < worst:
                best, worst = tried, makespan
        return best

    def deal(self, packing: Packing) -> Share:
        """This rank's share of an update. What was dealt before counts among equals."""
        costs = [self.cost(micro) for micro in packing.micro_batches]
        dealt = deal_out(costs, self._load_W)
        self._load_W = [
            load + sum(costs[number] for number in mine)
            for load, mine in zip(self._load_W, dealt, strict=True)
        ]
        most = max(len(mine) for mine in dealt)
        mine = tuple(dealt[self._rank])
        return Share(packing=packing, numbers=mine, padding=most - len(mine) if self._equal else 0)

    def cost(self, micro: MicroBatch) -> float:
        """The work of a micro-batch, in tokens."""
        return len(micro.tokens_T) + self._pair_cost * float((micro.depth_T + 1).sum())

    def _makespan(self, packing: Packing) -> float:
        costs = [self.cost(micro) for micro in packing.micro_batches]
        dealt = deal_out(costs, [0.0] * self._world)
        return max(sum(costs[number] for number in mine) for mine in dealt)


def deal_out(costs: Sequence[float], before_W: Sequence[float]) -> list[list[int]]:
    """The numbers that each rank gets, rising. `before_W`: the work that each has done in earlier updates.

    >>> deal_out([5, 4, 3, 3, 3], [0, 0])
    [[0, 3], [1, 2, 4]]
    >>> deal_out([5], [9, 0])
    [[], [0]]
    """
    dealt: list[list[int]] = [[] for _ in before_W]
    now_W = [0.0] * len(before_W)
    for number in sorted(range(len(costs)), key=lambda number: (-costs[number], number)):
        rank = min(range(len(before_W)), key=lambda rank: (now_W[rank], before_W[rank], rank))
        dealt[rank].append(number)
        now_W[rank] += costs[number]
    return [sorted(mine) for mine in dealt]

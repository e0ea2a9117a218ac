"""Which runs go into which micro-batch, so that few paths are forwarded twice and few places stay empty.

Micro-batches are filled one after the other. Each takes whole subtrees: those that hang on one path, from a
root to the *cut*, and whole other trees. When it is closed, the path to the cut is all that has to be
forwarded again. Cuts are tried from the shortest path on (no path: whole trees only), for each the subtrees
that fill the room best are found exactly, and the one that wastes the fewest tokens wins, in paths and in
empty places.

Letters: R = runs in depth-first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from art.training.packing.runs import Ints, Runs, bundles


def fullest(sizes: Sequence[int], room: int) -> list[int]:
    """Indices of sizes whose sum is the largest that is at most `room`; large sizes are preferred.

    Subset sum by dynamic programming, the reachable sums as the bits of one integer, so that an item costs
    a shift. Large items come first: they are hard to place later, small ones fill any gap.

    >>> fullest([5, 4, 3, 9], 8)
    [0, 2]
    """
    mask = (1 << (room + 1)) - 1
    order = [index for index in sorted(range(len(sizes)), key=lambda at: -sizes[at]) if sizes[index] <= room]
    reach = [1]
    for index in order:
        reach.append((reach[-1] | reach[-1] << sizes[index]) & mask)
        if reach[-1] >> room:
            break
    total = reach[-1].bit_length() - 1
    chosen = []
    for at in range(len(reach) - 2, -1, -1):
        if not reach[at] >> total & 1:
            chosen.append(order[at])
            total -= sizes[order[at]]
    return sorted(chosen)


EMPTY_COSTS = (1.0, 1 / 16)
"""What an empty place costs, in re-forwarded tokens: a plan is made with each."""
ACCEPTED = 1.02
"""The ratio to the lower bound of tokens up to which fewer micro-batches are better than fewer tokens."""
PASS_COST = 1 / 32
"""Above it, what a micro-batch costs by being one more, as a share of the budget."""
BUNDLE_COST = 1 / 64
"""The share of the budget that may stay empty in addition to keep branching sequences in one micro-batch."""
TRIALS = 64
"""Cuts that are tried for one micro-batch, at most."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Load:
    """The runs of one micro-batch, increasing."""

    runs: Ints
    owned: Ints
    """Those among them that no earlier micro-batch has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """A cut (-1: none), the subtrees that are taken, and the tokens wasted."""

    cut: int
    subtrees: Sequence[int]
    room: int
    """The tokens left for subtrees, behind the path."""
    wasted: float


def plan_loads(runs: Runs, budget: int, branching: tuple[Ints, Ints] | None = None) -> list[Load]:
    """The best of a few plans. `budget` is at least the longest path.

    `branching`: pairs of a sequence and a run of it; runs of one sequence are kept together where that is
    nearly free.
    """
    plans = [_Forest(runs, branching).pack(budget, empty_cost) for empty_cost in EMPTY_COSTS]

    def cost(loads: list[Load]) -> tuple[bool, float, float]:
        forwarded = sum(int(runs.length_R[load.runs].sum()) for load in loads)
        few = forwarded <= ACCEPTED * len(runs.tokens_T)
        return (
            (False, len(loads), forwarded) if few else (True, forwarded + PASS_COST * budget * len(loads), 0)
        )

    return min(plans, key=cost)


@dataclass(slots=True)
class _Forest:
    """The trees that are left to pack. Children of -1, the last place, are the roots."""

    runs: Runs
    branching: tuple[Ints, Ints] | None
    length: list[int] = field(init=False)
    parent: list[int] = field(init=False)
    size: list[int] = field(init=False)
    """Tokens left in the subtree, its first run included; 0 when nothing is left."""
    children: list[list[int]] = field(init=False)
    cuts: list[int] = field(init=False)
    """Runs with children, the shortest path first."""
    owned: Ints = field(init=False)

    def __post_init__(self) -> None:
        runs = self.runs
        self.length, self.parent = runs.length_R.tolist(), runs.parent_R.tolist()
        ends = np.append(runs.start_R, len(runs.tokens_T))
        self.size = (ends[runs.end_R] - runs.start_R).tolist()
        self.children = [[] for _ in range(len(runs) + 1)]
        for run, parent in enumerate(self.parent):
            self.children[parent].append(run)
        below_R = runs.above_R + runs.length_R
        inner = np.flatnonzero(runs.end_R > np.arange(len(runs)) + 1)
        self.cuts = inner[np.argsort(below_R[inner], kind="stable")].tolist()
        self.owned = np.zeros(len(runs), np.bool_)

    def pack(self, budget: int, empty_cost: float) -> list[Load]:
        loads = []
        while self.children[-1]:
            choice = self._choose(budget, empty_cost)
            loads.append(self._take_load(self._bundled(choice, budget)))
        return loads

    def _choose(self, budget: int, empty_cost: float) -> _Choice:
        left = sum(self.size[root] for root in self.children[-1])
        if left <= budget:
            return _Choice(cut=-1, subtrees=tuple(self.children[-1]), room=budget, wasted=0)
        # Room that the last two micro-batches have anyway costs nothing.
        spare = max(0, 2 * budget - left)
        best: _Choice | None = None
        trials = 0
        for cut in (-1, *self.cuts):
            path = self._path(cut)
            length = sum(self.length[run] for run in path)
            if best is not None and (length >= best.wasted or trials >= TRIALS):
                break
            if cut >= 0 and not self.size[cut]:
                continue
            items = self._hanging(path)
            sizes = [self.size[item] for item in items]
            room = budget - length
            taken = fullest(sizes, room)
            if not taken:
                continue
            trials += 1
            empty = room - sum(sizes[index] for index in taken)
            wasted = length + empty_cost * max(0, empty - spare)
            if best is None or wasted < best.wasted:
                subtrees = [items[index] for index in taken]
                best = _Choice(cut=cut, subtrees=subtrees, room=room, wasted=wasted)
        assert best is not None, "the budget is shorter than a path"
        return best

    def _bundled(self, choice: _Choice, budget: int) -> _Choice:
        """The same cut with sequences kept whole, where that leaves hardly more places empty."""
        if self.branching is None or not len(self.branching[0]):
            return choice
        items = bundles(self._hanging(self._path(choice.cut)), self.runs, *self.branching)
        sizes = [sum(self.size[item] for item in together) for together in items]
        taken = fullest(sizes, choice.room)
        lost = sum(self.size[item] for item in choice.subtrees) - sum(sizes[index] for index in taken)
        if not taken or lost > BUNDLE_COST * budget:
            return choice
        subtrees = [item for index in taken for item in items[index]]
        return replace(choice, subtrees=subtrees)

    def _path(self, cut: int) -> list[int]:
        """Returns the path from a root to the cut."""
        path = []
        while cut >= 0:
            path.append(cut)
            cut = self.parent[cut]
        return path[::-1]

    def _hanging(self, path: Sequence[int]) -> list[int]:
        """The subtrees beside a path: other trees, and children of the path's runs."""
        on_path = set(path)
        return [child for run in (-1, *path) for child in self.children[run] if child not in on_path]

    def _take_load(self, choice: _Choice) -> Load:
        path = self._path(choice.cut)
        chosen = list(path)
        for first in choice.subtrees:
            after = int(self.runs.end_R[first])
            chosen += [run for run in range(first, after) if self.size[run]]
            self.size[first:after] = [0] * (after - first)
            self.children[self.parent[first]].remove(first)
        for run in reversed(path):
            below = self.children[run]
            self.size[run] = self.length[run] + sum(self.size[child] for child in below) if below else 0
            if not below:
                self.children[self.parent[run]].remove(run)
        loaded = np.sort(np.array(chosen, np.int64))
        owned = loaded[~self.owned[loaded]]
        self.owned[owned] = True
        return Load(runs=loaded, owned=owned)

"""How evenly one step is dealt to ranks: 1,024 rollouts, by the real packer that is told the number of ranks,
beside the packer that is not told.

Efficiency is the tokens that any method must forward over ranks x the tokens of the slowest rank. It counts
what is forwarded twice and who waits; it measures no time, so other work on the machine changes nothing.
Every rank plans for itself: planning is given in seconds of one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from art.batch.batch_types import Batch, GroupRow
from art.batch.build import build_batch
from art.training.packing.pack import pack
from art.training.packing.runs import Packing
from art.training.ranks.deal import Dealer
from bench import corpora
from bench.rows import Row, write_rows

BUDGET = 32768
HIDDEN = 4096
"""Of an 8B model: what a pair of a query and a key costs beside a token."""
WORLDS = (2, 8, 32)
GOALS = {8: 0.97, 32: 0.95}
CORPORA: dict[str, Callable[[], list[GroupRow]]] = {
    "6-turn tool use, 1,024 rollouts": partial(corpora.tool_use, groups=128),
    "6-turn tool use, 128 rollouts": partial(corpora.tool_use, groups=16),
    "prompts of 8k, 64 groups of 16": partial(corpora.long_prompt, groups=64),
}


def slowest(packing: Packing, world: int) -> int:
    """Tokens of the rank that has the most."""
    return max(
        Dealer(rank, world, pair_cost=1 / (6 * HIDDEN)).deal(packing).forwarded for rank in range(world)
    )


def efficiency(packing: Packing, world: int) -> float:
    return packing.lower_bound / (world * slowest(packing, world))


def rows_of(name: str, batch: Batch) -> list[Row]:
    def packed(room: int) -> Packing:
        return pack(batch.tree, batch.entries, room)

    untold = packed(BUDGET)
    rows = []
    for world in WORLDS:
        begin = time.thread_time()
        told = Dealer(0, world, pair_cost=1 / (6 * HIDDEN)).plan(packed, BUDGET)
        planning = time.thread_time() - begin
        goal = GOALS.get(world) if "tool use, 1,024" in name else None
        at = f"{name}, {world} ranks: "
        rows += [
            Row(name=at + "efficiency", ours=efficiency(told, world), unit="share", goal=goal),
            Row(name=at + "efficiency, not told", ours=efficiency(untold, world), unit="share"),
            Row(name=at + "forwarded", ours=told.forwarded / told.lower_bound, unit="x lower bound"),
            Row(name=at + "planning", ours=planning, unit="s of a core"),
        ]
    return rows


def main() -> None:
    write_rows("ranks", [row for name, make in CORPORA.items() for row in rows_of(name, build_batch(make()))])


if __name__ == "__main__":
    main()

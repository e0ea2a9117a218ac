"""The sweep behind the defaults: a dozen cells of five minutes, then more seeds of the best and the default.

    make bench-sweep            goes on at the first cell without a record

Learning rate, group size at 64 rollouts a step, and the clip. With one update a step no ratio is clipped, so
the cells of the clip make four updates a step. What older programs get, 5e-6, is one of the cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.learning.cell_tables import by_way, league_table, run_bench, score_of
from bench.learning.cells import Cell, Record

TASK = "guess_number"
SECONDS = 300.0
HELD_OUT = 96
FOUR_UPDATES = {"learning_rate": 3e-4, "grad_accumulation_sequences": 16}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "rate 5e-6": {"learning_rate": 5e-6},
    "rate 1e-4": {"learning_rate": 1e-4},
    "rate 3e-4": {"learning_rate": 3e-4},
    "rate 1e-3": {"learning_rate": 1e-3},
    "rate 3e-3": {"learning_rate": 3e-3},
    "16 groups of 4": {"learning_rate": 3e-4, "groups": 16, "group_size": 4},
    "4 groups of 16": {"learning_rate": 3e-4, "groups": 4, "group_size": 16},
    "16 groups of 4, rate 1e-3": {"learning_rate": 1e-3, "groups": 16, "group_size": 4},
    "4 groups of 4, rate 1e-3": {"learning_rate": 1e-3, "groups": 4, "group_size": 4},
    "four updates": FOUR_UPDATES,
    "four updates, clip 0.2": {**FOUR_UPDATES, "loss_fn": "ppo", "epsilon": 0.2},
    "four updates, clip 0.2 to 0.28": {
        **FOUR_UPDATES,
        "loss_fn": "ppo",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
    },
}
BEST, SEEDS = 3, (1, 2)
DEFAULT = "rate 3e-4"
"""What the commands and the pages take."""


def cell_of(variant: str, seed: int) -> Cell:
    settings = {"groups": 8, "group_size": 8, **SETTINGS[variant]}
    return Cell(
        task=TASK,
        method="grpo",
        variant=variant,
        seed=seed,
        seconds=SECONDS,
        held_out=HELD_OUT,
        settings=settings,
    )


def cells(_: str, records: Sequence[Record]) -> list[Cell]:
    """Returns the dozen; once all of them are measured, also the other seeds of the best three and of the
    default.
    """
    dozen = [cell_of(variant, 0) for variant in SETTINGS]
    first = [one for one in records if one.cell.seed == 0]
    if len(first) < len(dozen):
        return dozen
    ranked = sorted(by_way(first).items(), key=lambda item: -score_of(item[1]).mean)
    again = dict.fromkeys([*(variant for (_, _, variant), _ in ranked[:BEST]), DEFAULT])
    return dozen + [cell_of(variant, seed) for variant in again for seed in SEEDS]


if __name__ == "__main__":
    run_bench("sweep", cells, league_table, about=__doc__)

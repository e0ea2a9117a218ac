"""The league: what a small real model learns in eight minutes of this machine, by each way of teaching it.

    make bench-league                          goes on at the first cell without a record
    python -m bench.learning.league --model FOLDER      with another base
    python -m bench.learning.league --tables            only the table, from bench/records/league.jsonl

Two tasks, two seeds. Every cell has the same base, held-out scenarios and seconds (`methods.py`). A better
prompt needs no gradient, and has one cell a task. TRL with our rate and rank has one seed. All of it takes
about four hours of two cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from art.client.options.learning_rates import starting_rate
from art.runs.environment_run import EnvironmentSettings
from bench.learning.cell_tables import league_table, run_bench
from bench.learning.cells import Cell, Record

TASKS = ("extract_json", "guess_number")
SEEDS = (0, 1)
SECONDS = 480.0
HELD_OUT = 96
BEST: Mapping[str, Any] = MappingProxyType({"learning_rate": 1e-3, "groups": 8, "group_size": 8})
"""The best of the sweep (`bench.learning.sweep`)."""
TUNED: Mapping[str, Any] = MappingProxyType({"learning_rate": 3e-4, "batch_size": 8})
OUR_RATE = {"learning_rate": TUNED["learning_rate"], "lora": {"r": 16, "lora_alpha": 32}}


def default_settings(model: str) -> dict[str, Any]:
    """Returns what `art train` does without a word about numbers."""
    chosen = EnvironmentSettings()
    sizes = {"groups": chosen.groups_per_step, "group_size": chosen.group_size}
    return {"learning_rate": starting_rate(model), **sizes}


def cells(model: str, _: Sequence[Record]) -> list[Cell]:
    """Returns all cells: those that need no gradient first, then seed by seed, so that a part is of use."""
    untrained = [
        Cell(task=task, method=method, held_out=HELD_OUT) for task in TASKS for method in ("base", "prompt")
    ]
    taught: list[tuple[str, str, Mapping[str, Any]]] = [
        ("grpo", "best settings", BEST),
        ("grpo", "defaults", default_settings(model)),
        ("trl", "recommended settings", {}),
        ("trl", "our rate and rank", OUR_RATE),
        ("rejection", "best of 8", TUNED),
        ("sft", "demonstrations", TUNED),
    ]
    return untrained + [
        Cell(
            task=task,
            method=method,
            variant=variant,
            seed=seed,
            seconds=SECONDS,
            held_out=HELD_OUT,
            settings=dict(settings),
        )
        for seed in SEEDS
        for task in TASKS
        for method, variant, settings in taught
        if settings is not OUR_RATE or seed == SEEDS[0]
    ]


if __name__ == "__main__":
    run_bench("league", cells, league_table, about=__doc__)

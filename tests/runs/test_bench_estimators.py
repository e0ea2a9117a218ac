"""The comparison of estimators: its table, and that of the page."""

from __future__ import annotations

import pytest
from bench.learning import estimators
from bench.learning.estimators import Cell, Record


def runs(method: str, reached: list[int | None], task: str = "single") -> list[Record]:
    """Runs that earn 0 until they earn 1 from a step on; None: never."""
    steps = estimators.TASKS[task].steps
    return [
        Record(
            cell=Cell(task=task, method=method, rate=0.001, seed=seed),
            machine="2 cores",
            curve=[float(step is not None and one >= step) for one in range(1, steps + 1)],
        )
        for seed, step in enumerate(reached)
    ]


def test_the_table_of_the_page_is_that_of_the_records() -> None:
    page = estimators.PAGE.read_text(encoding="utf-8")
    table = estimators.table_of(estimators.read_records())
    assert f"<!-- estimators -->\n{table}\n<!-- /estimators -->" in page
    for task in estimators.TASKS:
        methods = {name for name in estimators.ESTIMATORS if f"| {task} | `{name}` |" in table}
        assert len(methods) >= 8, "the page says so of each task"


def test_steps_have_their_interval_and_seeds_that_never_reach_the_score_are_counted() -> None:
    table = estimators.table_of([*runs("grpo", [4, 5, 6]), *runs("rloo", [4, None, 6]), *runs("gigpo", [7])])
    grpo, gigpo, rloo = table.splitlines()[2:]
    assert grpo.endswith("| 5.0 (2.5 to 7.5) |"), "5 +- 4.303 x 1 / sqrt(3)"
    assert gigpo.endswith("| 7.0 |"), "one seed has no interval"
    assert rloo.endswith("| never in 1 of 3 |")


def test_the_seed_that_chooses_the_rate_is_not_compared() -> None:
    chooses = runs("grpo", [1])[0]
    cell = Cell(task="single", method="grpo", rate=0.01, seed=estimators.TUNING_SEED)
    tuning = Record(cell=cell, machine="2 cores", curve=chooses.curve)
    records = [tuning, *runs("grpo", [4, 5])]
    assert "| 0.001 | 2 |" in estimators.table_of(records)
    assert estimators.best_rate("single", "grpo", records) == 0.01
    with pytest.raises(ValueError, match="max"):
        estimators.best_rate("ten", "grpo", records)

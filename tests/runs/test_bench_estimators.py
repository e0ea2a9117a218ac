"""The comparison of estimators: its table, and that of the page."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import variance
from types import TracebackType
from typing import Any

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


class NoBackend:
    """Stands in for the server of a run that is not made."""

    def __init__(self, **kwargs: Any) -> None: ...

    async def __aenter__(self) -> NoBackend:
        return self

    async def __aexit__(
        self, kind: type | None, error: Exception | None, trace: TracebackType | None
    ) -> None: ...


async def test_a_record_says_how_long_its_run_took_and_of_which_day_and_revision_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_cell(backend: Any, cell: Cell) -> list[float]:
        ran.append(cell)
        return [0.12345, 1.0]

    ran: list[Cell] = []
    monkeypatch.setattr(estimators, "RECORDS", tmp_path / "estimators.jsonl")
    monkeypatch.setattr(estimators, "run_cell", run_cell)
    monkeypatch.setattr("bench.learning.cell_runner.revision", lambda: "abc")
    monkeypatch.setattr(estimators.art, "LocalBackend", NoBackend)
    (old,) = runs("grpo", [3])
    estimators.RECORDS.write_text(old.to_line() + "\n", encoding="utf-8")
    assert not {"when", "revision", "seconds", "cpu_seconds"} & json.loads(old.to_line()).keys()
    new = Cell(task="ten", method="rloo", rate=0.003, seed=1)
    await estimators.run_cells([old.cell, new])
    await estimators.run_cells([old.cell, new])
    assert ran == [new], "cells with a line are not made again"
    first, second = estimators.read_records()
    assert first == old and second.cell == new and second.curve == [0.1235, 1.0]
    assert second.seconds is not None and second.seconds >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", str(second.when)) and second.revision == "abc"


def test_the_ratio_of_means_has_fiellers_interval() -> None:
    above, below = [4.0, 5.0, 6.0, 6.0], [9.0, 10.0, 11.0, 12.0]
    ratio, low, high = estimators.ratio_of_means(above, below)
    assert ratio == pytest.approx(5.25 / 10.5)
    for end in (low, high):  # where the means would be told apart from that ratio at 5 % exactly
        differences = (5.25 - end * 10.5) ** 2 / (variance(above) / 4 + end**2 * variance(below) / 4)
        assert differences == pytest.approx(3.182**2, rel=1e-6)
    assert estimators.ratio_of_means([1.0, 2.0], [0.0, 3.0])[1:] == (0.0, math.inf)


def fresh_runs(method: str, reached: list[int | None]) -> list[Record]:
    return [
        replace(one, cell=replace(one.cell, seed=seed))
        for one, seed in zip(runs(method, reached, "twenty"), estimators.FRESH, strict=False)
    ]


def test_fresh_seeds_are_a_table_of_their_own() -> None:
    _, value_model, plain = estimators.HALVED
    records = [*fresh_runs(value_model, [5, 6]), *fresh_runs(plain, [10, None])]
    table = estimators.halved_table_of(records).splitlines()
    assert table[2].startswith(f"| `{value_model}` | 2 | 5, 6 | 5.5 (")
    assert table[3].startswith(f"| `{plain}` | 2 | 10, never | 25.5 (")
    assert table[4].startswith("| ratio of the means | | | 0.22 (")
    assert "twenty" not in estimators.table_of(records), "none of them is in the comparison"


def test_the_page_has_the_fresh_seeds_and_the_times_of_the_records() -> None:
    page, records = estimators.PAGE.read_text(encoding="utf-8"), estimators.read_records()
    halved, times = estimators.halved_table_of(records), estimators.times_of(records)
    assert f"<!-- halved steps -->\n{halved}\n<!-- /halved steps -->" in page
    assert f"<!-- estimator times -->\n{times}\n<!-- /estimator times -->" in page
    *_, high = halved.splitlines()[-1].rstrip(" |)").split()
    assert float(high) < 0.5, "the page says that all of the interval is below one half"


def test_times_name_the_runs_that_are_too_long() -> None:
    short, long, ended, unknown = runs("grpo", [1, 2, 3, 4], "ten")
    timed = [
        replace(one, cell=replace(one.cell, seed=seed), cpu_seconds=seconds)
        for one, seed, seconds in ((short, 101, 89.0), (long, 101, 91.0), (ended, 5, 12.0))
    ]
    assert estimators.times_of([*timed, unknown]).splitlines() == [
        "- `grpo` on `ten`: 89 seconds, within 90.",
        "- `grpo` on `ten`: 91 seconds, over 90.",
        "- The 1 runs of the fresh seeds, which end early: at most 12 seconds.",
        "- The other 1 runs: not known.",
    ]

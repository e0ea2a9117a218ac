"""The comparison of estimators: its table, and that of the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
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
    monkeypatch.setattr(estimators, "revision", lambda: "abc")
    monkeypatch.setattr(estimators.art, "LocalBackend", NoBackend)
    (old,) = runs("grpo", [3])
    estimators.RECORDS.write_text(old.to_line() + "\n", encoding="utf-8")
    assert not {"when", "revision", "seconds"} & json.loads(old.to_line()).keys()
    new = Cell(task="ten", method="rloo", rate=0.003, seed=1)
    await estimators.run_cells([old.cell, new])
    await estimators.run_cells([old.cell, new])
    assert ran == [new], "cells with a line are not made again"
    first, second = estimators.read_records()
    assert first == old and second.cell == new and second.curve == [0.1235, 1.0]
    assert second.seconds is not None and second.seconds >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", str(second.when)) and second.revision == "abc"

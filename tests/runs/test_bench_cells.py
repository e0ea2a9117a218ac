"""A bench of cells goes on where it was killed, and its tables are read from the records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bench.learning import league, sweep
from bench.learning.cell_runner import run_missing
from bench.learning.cell_tables import league_table, score_of, skill_table
from bench.learning.cells import Cell, Measured, Point, Record, append_record, read_records
from bench.learning.example_programs import all_examples
from bench.learning.example_tasks import PROMPTS, ExampleTask
from bench.learning.methods import Clock, point_of

CELLS = [Cell(task="guess_number", method="grpo", seed=seed, seconds=1) for seed in range(3)]
PROGRAM = """
import sys, time
from pathlib import Path
from bench.learning.cell_runner import run_missing
from bench.learning.cells import Cell, Measured, Point

def run(cell, model, folder):
    print(cell.seed, flush=True)
    if cell.seed == 1 and len(sys.argv) > 2:
        time.sleep(600)
    return Measured(points=[Point(seconds=1, tokens=2, step=3, mean=0.5, low=0.4, high=0.6, scores=[0, 1])])

cells = [Cell(task="guess_number", method="grpo", seed=seed, seconds=1) for seed in range(3)]
run_missing(cells, Path(sys.argv[1]), model="m", run=run)
"""


def measured(*scores: float, **more: object) -> Measured:
    point = point_of([[one] for one in scores], seconds=60.0, tokens=1000, step=5)
    return Measured(points=[point, point, point], **more)  # type: ignore[arg-type]


def record(cell: Cell, found: Measured) -> Record:
    return Record(cell=cell, model="m", measured=found, when="2026-11-27", machine="2 cores", revision="abc")


@pytest.mark.slow
def test_a_killed_bench_goes_on_at_the_cell_that_was_under_way(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    command = [sys.executable, "-c", PROGRAM, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    first = subprocess.Popen(
        [*command, "wait"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert first.stdout is not None
    assert [first.stdout.readline().strip() for _ in range(2)] == ["0", "1"]
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert [one.cell.seed for one in read_records(path)] == [0]
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=240)
    assert again.stdout.split() == ["1", "2"]
    assert [one.cell.seed for one in read_records(path)] == [0, 1, 2]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == ""


@pytest.mark.slow  # asks git for the revision
def test_a_cell_that_fails_keeps_those_before_it(tmp_path: Path) -> None:
    def run(cell: Cell, model: str, folder: Path) -> Measured:
        if cell.seed == 1:
            raise RuntimeError("no memory")
        return measured(0.0, 1.0)

    path = tmp_path / "records.jsonl"
    with pytest.raises(RuntimeError, match="no memory"):
        run_missing(CELLS, path, model="m", run=run, tell=len)
    assert [one.cell for one in read_records(path)] == CELLS[:1]


@pytest.mark.slow
def test_another_model_or_setting_is_another_cell(tmp_path: Path) -> None:
    ran: list[str] = []

    def run(cell: Cell, model: str, folder: Path) -> Measured:
        ran.append(f"{model} {dict(cell.settings)}")
        return measured(1.0)

    path = tmp_path / "records.jsonl"
    other = replace(CELLS[0], settings={"learning_rate": 1e-3})
    for model, cells in (("m", CELLS[:1]), ("m", CELLS[:1]), ("n", CELLS[:1]), ("m", [other])):
        run_missing(cells, path, model=model, run=run, tell=len)
    assert ran == ["m {}", "n {}", "m {'learning_rate': 0.001}"]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = record(CELLS[0], measured(0.0, 0.5, 1.0, greedy=0.25, pass_at_8=0.75, note="a note"))
    append_record(tmp_path / "r.jsonl", written)
    assert read_records(tmp_path / "r.jsonl") == [written]


def test_the_interval_is_over_scenarios_not_over_rollouts() -> None:
    once = point_of([[0.0], [1.0], [1.0], [0.0]], seconds=1, tokens=1, step=1)
    many = point_of([[0.0] * 8, [1.0] * 8, [1.0] * 8, [0.0] * 8], seconds=1, tokens=1, step=1)
    assert (once.low, once.high) == (many.low, many.high)
    two = [record(CELLS[0], measured(0.0, 1.0)), record(CELLS[1], measured(0.0, 1.0))]
    assert score_of(two).count == 2, "the seeds have the same scenarios"


def test_a_table_has_a_line_for_each_way_the_best_first() -> None:
    base = Cell(task="guess_number", method="base")
    records = [
        record(base, Measured(points=[point_of([[0.2], [0.3]], seconds=0, tokens=0, step=0)], greedy=0.1)),
        record(CELLS[0], measured(0.4, 0.6)),
        record(CELLS[1], measured(0.8, 0.8)),
    ]
    lines = league_table(records).splitlines()
    assert lines[2].startswith("| guess_number | grpo | 2 | 0.65 | 0.65 | 0.65 (")
    assert lines[3].startswith("| guess_number | base | 1 |  |  | 0.25 (")
    assert "| 0.10 |" in skill_table(records)


def test_the_sweep_takes_more_seeds_of_its_best_and_the_default_once_all_are_measured() -> None:
    dozen = sweep.cells("m", [])
    assert len(dozen) == 12 and {one.seed for one in dozen} == {0}
    scores = {one: measured(place / 20, place / 20) for place, one in enumerate(dozen)}
    assert sweep.cells("m", [record(one, scores[one]) for one in dozen[:11]]) == dozen
    more = sweep.cells("m", [record(one, scores[one]) for one in dozen])[12:]
    again = [*(one.variant for one in reversed(dozen[9:])), sweep.DEFAULT]
    assert [(one.variant, one.seed) for one in more] == [(one, seed) for one in again for seed in (1, 2)]


def test_every_cell_of_the_league_has_the_same_seconds_and_held_out_scenarios() -> None:
    taught = [one for one in league.cells("m", []) if one.method not in ("base", "prompt")]
    assert {(one.seconds, one.held_out) for one in taught} == {(480.0, league.HELD_OUT)}
    assert len(set(map(str, taught))) == len(taught)
    whole = [one for one in taught if one.method != "sft"]  # which ends when its rows are learned
    assert sum(one.seconds for one in whole) < 2.5 * 3600


def test_the_clock_stops_while_it_is_paused() -> None:
    began = time.monotonic()
    clock = Clock()
    with clock.pause():
        time.sleep(0.2)
    assert clock.seconds <= time.monotonic() - began - 0.2


@pytest.mark.slow  # imports the programs
@pytest.mark.parametrize("name", [one.folder.name for one in all_examples() if one.cells])
def test_a_program_s_own_environment_is_found_for_each_prompt(name: str) -> None:
    task = ExampleTask.find(name)
    assert {type(task.environment(prompt)).__module__ for prompt in range(PROMPTS)} == {name}


@pytest.mark.slow  # imports the programs
def test_what_a_prompt_shows_is_not_trained_on() -> None:
    rows = ExampleTask.find("guess_number").demonstrations(0, 3)
    assert len(rows) == 3 and rows != ExampleTask.find("guess_number").demonstrations(1, 3)
    for row in rows:
        said = [one for one in row["messages"] if one["role"] == "assistant"]
        shown = [one for one in said if one.get("weight") == 0]
        assert [one["content"] for one in shown] == ["14", "3", "8"]
        assert len(said) > len(shown) and said[len(shown) :] == [one for one in said if "weight" not in one]
    assert "tools" in ExampleTask.find("shopping_agent").demonstrations(0, 1)[0]


def test_points_of_a_measured_cell_end_with_the_score() -> None:
    assert measured(1.0, 0.0).last.mean == 0.5
    assert isinstance(measured(1.0).last, Point)

"""A few cells of the matrix of faults, run for real, and its judge, which must fail a run that is not right.

The outcome that the judge sees is one of these runs, in whose folder one thing was changed.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bench.faults.outcome import EQUAL, FEWER, NO_END, Ended, Outcome, Verdict, examine, judge
from bench.faults.processes import RunProcesses
from bench.faults.random_kills import kill_at_random
from bench.faults.records import read_random
from bench.faults.setups import JudgeAddress, Setup, judge_server
from bench.faults.table import Cell, read_table
from bench.faults.trial import JOB_PHASES, Trial

pytestmark = [
    pytest.mark.slow,
    pytest.mark.extension,
    pytest.mark.skipif(sys.platform != "linux", reason="states of processes are read from /proc"),
]

IN_CI = (
    "client/train/kill-9",
    "server/save/kill-9",
    "trainer/promote/sigterm",
    "engine/gather/kill-9",
)
KILLS, SEED = 4, 1
HOME = Path("faults") / "models" / "player"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeAddress]:
    with judge_server(tmp_path_factory.mktemp("judge")) as (_, found):
        yield found


@pytest.fixture(scope="module")
def calm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calm")


@pytest.fixture(scope="module")
def calm(calm_folder: Path, address: JudgeAddress) -> Outcome:
    outcome = Trial(None, Setup(), calm_folder, address).run()
    assert outcome.first.status == 0, outcome.first
    return outcome


def run(name: str, folder: Path, address: JudgeAddress) -> tuple[Cell, Outcome]:
    """A run of a machine that is busy may be past the phase before the fault comes: then it is run again."""
    (cell,) = read_table().find([name])
    for number in range(3):
        home = folder / str(number)
        home.mkdir()
        outcome = Trial(cell, Setup.of(cell), home, address).run()
        if outcome.hit:
            return cell, outcome
    raise AssertionError(f"{name} was missed three times")


def test_the_program_tells_of_each_phase_that_a_fault_waits_for(calm: Outcome) -> None:
    assert set(read_table().phases) - {*JOB_PHASES, "replay"} <= set(calm.first.phases)


@pytest.mark.parametrize("name", IN_CI)
def test_a_cell_ends_as_the_undisturbed_run(
    name: str, tmp_path: Path, address: JudgeAddress, calm: Outcome
) -> None:
    cell, outcome = run(name, tmp_path, address)
    verdict = judge(cell, outcome, calm, bound_s=math.inf)
    assert not verdict.flaws and verdict.ending == EQUAL, (verdict, outcome)
    assert (outcome.again is not None) == (cell.component == "client")


def test_kills_at_random_moments_change_nothing(tmp_path: Path, address: JudgeAddress, calm: Outcome) -> None:
    failed = kill_at_random(KILLS, SEED, tmp_path, address, calm, tmp_path / "kills.jsonl")
    records = read_random(tmp_path / "kills.jsonl")
    assert failed == 0 and all(one.holds for one in records), records
    assert sum(sum(one.kills.values()) for one in records) == KILLS


def other_weights(home: Path) -> None:
    file = home / HOME / "checkpoints" / "0002" / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def logged_twice(home: Path) -> None:
    file = home / HOME / "history.jsonl"
    file.write_text(file.read_text() + file.read_text().splitlines()[-1] + "\n")


def one_step_more(home: Path) -> None:
    shutil.copytree(home / HOME / "checkpoints" / "0002", home / HOME / "checkpoints" / "0003")


def trained_twice(home: Path) -> None:
    with sqlite3.connect(home / "server" / "jobs.sqlite") as file:
        columns = [row[1] for row in file.execute("PRAGMA table_info(jobs)")]
        told = ", ".join(
            "'again'" if name == "job_id" else "NULL" if name == "number" else name for name in columns
        )
        file.execute(f"INSERT INTO jobs SELECT {told} FROM jobs WHERE step = 2")
    file.close()


def half_written(home: Path) -> None:
    (home / HOME / "state.json.tmp").write_text("{")


def sheet_is_off(home: Path) -> None:
    file = home / HOME / "checkpoints" / "0002" / "job.json"
    note = json.loads(file.read_text())
    note["result"]["sheet"]["started"]["rollouts"] += 1
    file.write_text(json.dumps(note))


PLANTED: dict[Callable[[Path], None], str] = {
    other_weights: "weights of the steps [2] differ",
    logged_twice: "history.jsonl has the steps [1, 2, 2], not [1, 2]; twice: [2]",
    one_step_more: "weights of the steps [3] differ",
    trained_twice: "jobs have made the steps [1, 2, 2]",
    half_written: "left half-written: faults/models/player/state.json.tmp",
    sheet_is_off: "the sheet does not balance: 7 started",
}


@pytest.mark.parametrize("plant", PLANTED)
def test_the_judge_fails_a_run_whose_folder_is_not_right(
    plant: Callable[[Path], None], tmp_path: Path, calm: Outcome, calm_folder: Path
) -> None:
    (cell,) = read_table().find(["server/train/kill-9"])
    shutil.copytree(calm_folder / "run", tmp_path / "run")
    same = replace(calm, found=examine(tmp_path / "run"))
    assert not judge(cell, same, calm, bound_s=math.inf).flaws
    plant(tmp_path / "run")
    (flaw,) = judge(cell, replace(calm, found=examine(tmp_path / "run")), calm, bound_s=math.inf).flaws
    assert PLANTED[plant] in flaw


def test_the_judge_fails_an_end_that_is_not_right(calm: Outcome) -> None:
    (cell,) = read_table().find(["server/train/kill-9"])
    again = calm.first

    def flaws(first: Ended, then: Ended | None = None) -> tuple[str, ...]:
        return judge(cell, replace(calm, first=first, again=then), calm, bound_s=100.0).flaws

    named = replace(calm.first, status=1, error="DiskError", is_ours=True, seconds=59.0)
    assert flaws(named, again) == ()
    assert flaws(replace(named, seconds=61.0), again) == ("DiskError came after 61 s",)
    (foreign,) = flaws(replace(named, error="ComputeError", is_ours=False), again)
    assert "no error of ours" in foreign
    assert flaws(replace(named, error=""), again) == ("ended with status 1 and no error",)
    assert flaws(replace(calm.first, status=None, seconds=420.0), again) == ("no end 420 s after the fault",)
    hung = replace(calm, first=replace(calm.first, status=None))
    assert judge(cell, hung, calm, bound_s=100.0).ending == NO_END
    assert flaws(replace(calm.first, seconds=101.0)) == ("ended 101 s after the fault, over 100 s",)
    assert flaws(replace(calm.first, steps=3)) == ("made 3 steps of 2",)
    assert "started again, it ended with 1" in flaws(named, replace(again, status=1))[0]
    assert flaws(replace(calm.first, evaluated="")) == (
        "the evaluation's replies differ from the undisturbed run's",
    )
    paid = judge(cell, replace(calm, books=replace(calm.books, again=1)), calm, bound_s=100.0)
    assert calm.books.recorded and paid.flaws == (
        f"the judge was paid twice for 1 of {calm.books.recorded} recorded answers",
    )
    (silent,) = judge(cell, replace(calm, books=replace(calm.books, recorded=0)), calm, bound_s=100.0).flaws
    assert silent == "0 answers of the judge are recorded, 0 of them not in its log"
    changed = judge(cell, replace(calm, changed=["server/jobs.sqlite"]), calm, bound_s=100.0)
    assert changed.flaws == ("the replay changed the run: server/jobs.sqlite",)
    orphan = judge(cell, replace(calm, orphans=["art.server"]), calm, bound_s=100.0)
    assert orphan.flaws == ("outlived the run: art.server",)


def test_a_reward_that_nobody_gave_is_no_lost_rollout(calm: Outcome) -> None:
    """Without a judge rollouts are unscored; other weights with none of them are another run."""
    (cell,) = read_table().find(["judge/judge/kill-9"])
    other = calm.found.weights | {2: "of other rewards"}

    def judged(**outcomes: int) -> Verdict:
        found = replace(calm.found, weights=other, outcomes=outcomes)
        return judge(cell, replace(calm, found=found), calm, bound_s=math.inf)

    assert judged(trained=3, unscored=3) == Verdict(ending=FEWER, flaws=())
    assert judged(trained=3, zero_advantage=3).flaws == (
        "weights of the steps [2] differ from the undisturbed run's",
    )


def test_a_process_that_outlives_the_run_is_found() -> None:
    import psutil

    parent = "import subprocess, sys; subprocess.Popen(['sleep', '600']); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as started:
        processes = RunProcesses()
        while len(processes.alive()) < 2:
            processes.look(psutil.Process(started.pid))
    assert processes.await_end(0.2) == ["sleep 600"]
    processes.end()
    assert processes.await_end(240.0) == []

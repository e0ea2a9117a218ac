"""Which runs are below a folder, and whether one lives."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from pathlib import Path

import pytest
from made_run import MadeRun, made_run

from art.process.files import take_lock
from art.server.jobs.job_store import JobStore
from art_extensions.ui.run_files import find_runs, life_sign


def job_file(root: Path, state: str) -> None:
    """A table of jobs with one of the made run's model."""
    (root / "server").mkdir(exist_ok=True)
    path = root / "server" / "jobs.sqlite"
    asyncio.run(JobStore(path).close())
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO jobs (job_id, project, name, request, digest, state, phase, created_at) "
            "VALUES ('j', 'games', 'player', '{}', x'00', ?, 'training', 1.0)",
            (state,),
        )


@pytest.mark.parametrize("place", ["", ".art", "art", "one/art", "one/.art", "one"])
def test_a_data_folder_a_run_and_a_folder_of_runs_are_found(tmp_path: Path, place: str) -> None:
    made_run(tmp_path / place)
    (key,) = find_runs(tmp_path)
    assert key == ("one" if place.startswith("one") else "-") + "/games/player"


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    assert find_runs(tmp_path) == {} and find_runs(tmp_path / "nothing") == {}


def test_a_run_is_alive_while_its_server_holds_the_folder(tmp_path: Path) -> None:
    made_run(tmp_path)
    job_file(tmp_path, "running")
    (run,) = find_runs(tmp_path).values()
    assert life_sign(run).state == "dead"
    descriptor = take_lock(tmp_path / "server" / "lock")
    assert descriptor is not None
    assert life_sign(run).state == "alive" and "training" in life_sign(run).words
    os.close(descriptor)
    assert life_sign(run).state == "dead"


def test_a_run_that_made_its_steps_is_finished_and_one_that_did_not_is_dead(tmp_path: Path) -> None:
    made_run(tmp_path / "art")
    job_file(tmp_path / "art", "done")
    (run,) = find_runs(tmp_path).values()
    assert life_sign(run).state == "finished"
    (tmp_path / "settings.json").write_text(json.dumps({"steps": 5}))
    assert life_sign(run).state == "dead" and "step 2 of 5" in life_sign(run).words
    (tmp_path / "result.json").write_text("{}")
    assert life_sign(run).state == "finished"


def test_damaged_files_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    run = MadeRun(tmp_path)
    (run.model / "history.jsonl").write_bytes(
        b'{"step": 1, "train/reward": 0.5}\n\xff\xfe garbage\n{"step": 2'
    )
    (run.model / "registration.json").write_bytes(b"\xff")
    (run.model / "model.json").write_text("[1, 2]")
    (run.root / "server").mkdir()
    (run.root / "server" / "jobs.sqlite").write_bytes(b"no database")
    (found,) = find_runs(tmp_path).values()
    assert found.base_model() is None and found.settings() == {} and life_sign(found).state == "finished"
    assert set(found.history.steps) <= {1}


def test_the_files_of_a_run_are_not_written(tmp_path: Path) -> None:
    made_run(tmp_path)
    job_file(tmp_path, "running")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    (run,) = find_runs(tmp_path).values()
    life_sign(run)
    run.splits, run.checkpoints(), run.settings()
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before

"""The PipelineTrainer on a real server: it learns, and goes on after its program was killed."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

STEPS, KILLED_AT = 8, 2
PROGRAM = [sys.executable, str(Path(__file__).parent / "pipeline_program.py")]


def rows(folder: Path) -> list[dict[str, Any]]:
    history = folder / "flow" / "models" / "agent" / "history.jsonl"
    return [json.loads(line) for line in history.open()] if history.exists() else []


def newest(folder: Path) -> int:
    return max((row["step"] for row in rows(folder)), default=0)


def finished_jobs(folder: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Request and result of each job that made a step of the pipeline's model."""
    path = folder / "server" / "jobs.sqlite"
    with sqlite3.connect(path) as database:
        found = database.execute(
            "SELECT request, result FROM jobs WHERE state = 'done' AND name = 'agent' ORDER BY number"
        )
        return [(json.loads(request), json.loads(result)) for request, result in found]


def trained_rollouts(jobs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    groups = [group for request, _ in jobs for group in request["groups"]]
    return [one["rollout"] for group in groups for one in group["trajectories"]]


@pytest.mark.slow
def test_it_learns_and_goes_on_exactly_after_kill_9(tmp_path: Path) -> None:
    command = [*PROGRAM, str(tmp_path), str(STEPS)]
    with (tmp_path / "first.log").open("w") as log:
        program = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + 120
        while newest(tmp_path) < KILLED_AT:
            assert program.poll() is None and time.monotonic() < until, (tmp_path / "first.log").read_text()
            time.sleep(0.05)
        program.kill()
        program.wait()
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]

    evals = {row["step"]: row["val/reward"] for row in rows(tmp_path) if "val/reward" in row}
    assert set(evals) == {0, STEPS} and evals[STEPS] > evals[0]

    books = json.loads((tmp_path / "flow/models/agent/state.json").read_text())["_pipeline_trainer"]
    jobs = finished_jobs(tmp_path)
    assert [result["step"] for _, result in jobs] == list(range(1, STEPS + 1)), "one job for each step"
    logs = sorted(file.stem for file in (tmp_path / "flow/models/agent/trajectories/train").glob("*.parquet"))
    assert logs == [f"{step:04d}" for step in range(1, STEPS + 1)], "that of the killed step too"
    rollouts = trained_rollouts(jobs)
    assert max(Counter(rollouts).values()) == 1, "no rollout was trained twice"
    assert len(rollouts) == 8 * books["outcomes"]["trained"]
    assert sum(books["outcomes"].values()) == books["total_scenarios_consumed"]
    for request, result in jobs:
        fates, sent = result["sheet"]["fates"], [*request["groups"], *request["discarded"]]
        assert sum(row["rollouts"] for row in fates.values()) == sum(
            len(group["trajectories"]) + group["failed"] for group in sent
        )
        assert fates["trained"]["rollouts"] > 0 and "failed" not in fates
    ages = [row["offpolicy/steps_max"] for row in rows(tmp_path) if "offpolicy/steps_max" in row]
    assert 0 < max(ages) <= 2
    check_gathered_ahead(json.loads(done.stdout.splitlines()[-1]))


def check_gathered_ahead(steps: list[dict[str, Any]]) -> None:
    """What was gathered ahead is trained up to the age that `train` allows, and stale beyond it."""
    fresh, older, oldest = steps
    assert fresh["age"] == 0 and older["age"] == 1
    assert fresh["fates"]["trained"] > 0 and older["fates"]["trained"] > 0
    assert {"stale"} == oldest["fates"].keys() and oldest["age"] is None
    assert [sum(step["fates"].values()) for step in steps] == [24, 24, 24]

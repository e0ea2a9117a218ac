"""kill -9 at any moment: the next run takes up what was not trained, and nothing twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from art.tracking.trajectory_log import read_trajectory_groups
from waiting import eventually

SCENARIOS, KILLS = 400, 4
PROGRAM = [sys.executable, str(Path(__file__).parent / "killed_program.py")]


def trained(folder: Path) -> list[int]:
    """Scenarios of all jobs that the backend carried out."""
    return [n for job in json.loads((folder / "jobs.json").read_text()).values() for n in job["scenarios"]]


def count(folder: Path) -> int:
    """How many scenarios are trained. The program may be killed, or read, while it writes its file."""
    return len(trained(folder)) if (folder / "jobs.json").exists() else 0


@pytest.mark.slow
def test_each_scenario_meets_one_end_however_often_the_program_is_killed(tmp_path: Path) -> None:
    command = [*PROGRAM, str(tmp_path), str(SCENARIOS)]
    dice, counts = random.Random(0), [0]
    for life in range(1, KILLS + 1):
        # However long this process is held up, that life comes to no end before it is killed.
        never_end = SCENARIOS * life // (KILLS + 1)
        program = subprocess.Popen([*command, str(never_end)], stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
        eventually(lambda: count(tmp_path) > counts[-1])
        time.sleep(dice.uniform(0.0, 0.3))
        program.kill()
        program.communicate()
        counts.append(count(tmp_path))
    assert sorted(set(counts)) == counts and counts[-1] < SCENARIOS, "each was killed in the middle"
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    state = json.loads((tmp_path / "p" / "models" / "agent" / "state.json").read_text())["_pipeline_trainer"]
    equal = len(range(0, SCENARIOS, 7))
    assert Counter(trained(tmp_path)) == Counter(n for n in range(SCENARIOS) if n % 7)
    assert state["outcomes"] == {"trained": SCENARIOS - equal, "discarded": equal, "stale": 0, "failed": 0}
    assert state["scenario_offset"] == SCENARIOS and state["settled_beyond_offset"] == []
    check_log(tmp_path / "p" / "models" / "agent", json.loads((tmp_path / "jobs.json").read_text()))


def check_log(folder: Path, jobs: dict[str, Any]) -> None:
    """Each step's trajectories and its row are there once, those that were under way at a kill as well."""
    rows = [json.loads(line) for line in (folder / "history.jsonl").open()]
    steps = [job["step"] for job in jobs.values()]
    for name in ("train/reward", "train/discarded_stale_groups", "checkpoint/saved"):
        assert sorted(row["step"] for row in rows if name in row) == steps, name
    for job in jobs.values():
        groups = read_trajectory_groups(folder / "trajectories" / "train" / f"{job['step']:04d}.parquet")
        assert [group.metadata["scenario_id"] for group in groups] == job["scenarios"]
        assert all(len(group.trajectories) == 2 for group in groups)
    assert len(list((folder / "trajectories" / "train").glob("*.parquet"))) == len(steps)
    assert not list((folder / "under_way").iterdir())

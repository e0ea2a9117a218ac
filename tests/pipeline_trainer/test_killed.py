"""kill -9 at any moment: the next run takes up what was not trained, and nothing twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

SCENARIOS, KILLS = 400, 4
PROGRAM = [sys.executable, str(Path(__file__).parent / "killed_program.py")]


def trained(folder: Path) -> list[int]:
    """Scenarios of all jobs that the backend carried out."""
    return [n for job in json.loads((folder / "jobs.json").read_text()).values() for n in job["scenarios"]]


@pytest.mark.slow
def test_each_scenario_meets_one_end_however_often_the_program_is_killed(tmp_path: Path) -> None:
    command = [*PROGRAM, str(tmp_path), str(SCENARIOS)]
    dice, counts = random.Random(0), []
    for _ in range(KILLS):
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
        time.sleep(dice.uniform(0.1, 0.5))
        program.kill()
        program.communicate()
        counts.append(len(trained(tmp_path)) if (tmp_path / "jobs.json").exists() else 0)
    assert 0 < counts[-1] < SCENARIOS, "it was killed in the middle"
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    state = json.loads((tmp_path / "p" / "models" / "agent" / "state.json").read_text())["_pipeline_trainer"]
    equal = len(range(0, SCENARIOS, 7))
    assert Counter(trained(tmp_path)) == Counter(n for n in range(SCENARIOS) if n % 7)
    assert state["outcomes"] == {"trained": SCENARIOS - equal, "discarded": equal, "stale": 0, "failed": 0}
    assert state["scenario_offset"] == SCENARIOS and state["settled_beyond_offset"] == []

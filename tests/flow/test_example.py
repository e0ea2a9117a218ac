"""The example of tic-tac-toe runs and resumes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tic_tac_toe.py"


@pytest.mark.slow
def test_the_example_trains(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "2", "2", "4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(lines) == 2 and "of 8 games not lost" in lines[1]
    again = subprocess.run(
        [sys.executable, str(EXAMPLE), "3", "2", "4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert again.returncode == 0, again.stderr
    assert [line[:6] for line in again.stdout.splitlines() if line.startswith("step ")] == ["step 3"]

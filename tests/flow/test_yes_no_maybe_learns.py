"""The example learns that `maybe` is worth more than `no`, and `no` more than `yes`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "yes_no_maybe.py"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_mean_reward_reaches_the_target(tmp_path: Path, seed: int) -> None:
    command = [sys.executable, str(EXAMPLE), "--seed", str(seed), "--path", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rewards = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert rewards[0] < 0.80, "the model that ships has nothing left to learn"
    assert rewards[-1] >= 0.95

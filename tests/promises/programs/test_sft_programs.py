"""Programs that learn from examples, as users of 0.5.18 wrote them, and what they left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent

pytestmark = pytest.mark.slow


def run(program: str, folder: Path, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / f"{program}.py"), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr and "never awaited" not in done.stderr
    return done.stdout


def rows(folder: Path, model: str) -> list[dict[str, float]]:
    (path,) = folder.glob(f".art/*/models/{model}/history.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_examples_from_a_file(tmp_path: Path) -> None:
    printed = run("v0518_sft_from_file", tmp_path, 10)
    before, after = (int(found) for found in re.findall(r": (\d+) of 24", printed))
    assert printed.startswith("24 examples\n") and before < 16 and after >= 22, printed
    (row,) = rows(tmp_path, "last-word-001")
    assert row["step"] == 1 and row["data/step_num_gradient_steps"] == 10 * 24 / 4
    assert row["data/sheet/trained_rollouts"] == 10 * 24 and row["data/step_num_dropped_trajectories"] == 0
    assert row["time/step_trainer_s"] > 0 and row["loss/train"] > 0


def test_a_warm_up_then_rewards(tmp_path: Path) -> None:
    printed = run("v0518_sft_then_rl", tmp_path, 2)
    assert re.findall(r"sft: epoch (\d), batch (\d+), now at step (\d)", printed) == [
        ("0", "0", "1"),
        ("1", "12", "2"),
    ]
    assert re.findall(r"rl: step (\d), reward 0\.\d+", printed) == ["3", "4"]
    steps = rows(tmp_path, "warm-001")
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert steps[1]["loss/train"] < steps[0]["loss/train"], "the teacher's answers are likelier the second time"
    (checkpoints,) = tmp_path.glob(".art/*/models/warm-001/checkpoints")
    kinds = [
        json.loads((one / "trainer_state.json").read_text())["kind"] for one in sorted(checkpoints.iterdir())
    ]
    assert kinds == ["rl", "sft", "sft", "rl", "rl"]

    # Started again, it goes on: no second warm-up, one more step from rewards.
    printed = run("v0518_sft_then_rl", tmp_path, 3)
    assert "sft:" not in printed and re.findall(r"rl: step (\d)", printed) == ["5"]

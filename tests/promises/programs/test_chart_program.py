"""The benchmark program, as a user would run it, and what it left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib import image
from openai.types.chat.chat_completion import Choice

from art.utils.trajectory_logging import read_trajectory_groups_parquet
from art_extensions.compat.benchmarking import load_latest_metrics, load_trajectories

PROGRAM = Path(__file__).with_name("v05_benchmark_charts.py")
STEPS, QUESTIONS = 2, 6


@pytest.mark.slow
def test_charts_of_a_small_run(tmp_path):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(STEPS)],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = QUESTIONS * (4 * (1 + STEPS + 1) + 8 * STEPS)
    assert done.stdout.splitlines()[-1] == f"{expected} trajectories"
    for name in ("progress.png", "comparison.png"):
        pixels = image.imread(tmp_path / name)
        assert pixels.shape[0] > 500 and pixels.std() > 0.01  # not blank

    df = asyncio.run(load_trajectories("yes-no-maybe", art_path=tmp_path / ".art"))
    steps = df.group_by("model", "split").agg("step")
    found = {(model, split): sorted(set(seen)) for model, split, seen in steps.rows()}
    assert found == {
        ("agent-001", "train"): [1, 2],
        ("agent-001", "val"): [0, 1, 2],
        ("base", "val"): [0],
    }
    latest = asyncio.run(load_latest_metrics("yes-no-maybe", art_path=tmp_path / ".art"))
    assert latest.select("model", "step").rows() == [("agent-001", STEPS), ("base", 0)]

    log = (
        tmp_path
        / ".art"
        / "yes-no-maybe"
        / "models"
        / "agent-001"
        / "trajectories"
        / "train"
        / "0001.parquet"
    )
    groups = read_trajectory_groups_parquet(log)
    assert [len(group) for group in groups] == [8] * QUESTIONS
    said = [t.messages_and_choices[-1] for group in groups for t in group]
    assert all(isinstance(choice, Choice) and choice.sample_id for choice in said)

"""A run that logs step after step keeps nothing of them in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import art
from art.server.checkpoints.checkpoints import Checkpoints
from kinds import count_kinds, growing_kinds

STEPS = 30
"""Between two counts."""


def a_rollout(step: int, reward: float) -> art.Trajectory:
    said = [{"role": "user", "content": f"step {step}"}, {"role": "assistant", "content": "yes"}]
    return art.Trajectory(messages_and_choices=said, reward=reward, metadata={"scenario_id": f"{step}"})


@pytest.mark.slow
async def test_a_logged_step_leaves_nothing(tmp_path: Path) -> None:
    model = art.Model(name="a", project="p", base_path=str(tmp_path), report_metrics=[])
    counts = []
    for step in range(3 * STEPS):
        groups = [art.TrajectoryGroup([a_rollout(step, 0.0), a_rollout(step, 1.0)])]
        await model.log(groups, split="train", step=step, metrics={"train/entropy": 0.5})
        if step % STEPS == STEPS - 1:
            del groups
            counts.append(count_kinds())
    assert growing_kinds(counts, steps=STEPS) == {}


def test_a_step_that_is_saved_or_set_aside_leaves_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    counts = []
    for step in range(3 * STEPS):
        remains = checkpoints.fresh_folder(step).with_name(f"..{step:04d}.saving.x.partial")
        remains.mkdir()
        assert not checkpoints.fresh_folder(step).exists() and not remains.exists()
        assert checkpoints.rejections(step) == 0
        if step % STEPS == STEPS - 1:
            counts.append(count_kinds())
    assert growing_kinds(counts, steps=STEPS) == {}

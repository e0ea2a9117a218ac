"""What of the asynchronous trainer is there: retention of checkpoints, and groups from single rollouts."""

from __future__ import annotations

from typing import Any

import pytest

import art
from art.pipeline_trainer import (
    CheckpointInfo,
    CheckpointRetentionContext,
    keep_recent_and_top,
    make_group_rollout_fn,
)


def test_the_newest_and_the_best_are_kept() -> None:
    rewards = {1: 0.9, 2: 0.1, 3: 0.5, 4: float("nan"), 5: 0.5, 6: None}
    checkpoints = [
        CheckpointInfo(step=step, metrics={} if reward is None else {"val/reward": reward})
        for step, reward in rewards.items()
    ]
    context = CheckpointRetentionContext(current_step=7, checkpoints=checkpoints)
    assert set(keep_recent_and_top(recent=1, top=2)(context)) == {6, 1, 5}
    assert set(keep_recent_and_top(recent=0, top=1, metric="val/other")(context)) == set()
    assert set(keep_recent_and_top()(context)) == {6, 5, 4, 3, 2, 1}
    with pytest.raises(ValueError, match="may be negative"):
        keep_recent_and_top(recent=-1)


async def test_single_rollouts_become_a_group() -> None:
    seen: list[str | None] = []

    async def attempt(model: Any, scenario: dict[str, Any], config: Any) -> art.Trajectory:
        trajectory = art.Trajectory(reward=len(seen), metadata={"model": model, "config": config})
        seen.append(trajectory.rollout_id)
        if len(seen) == 2:
            raise ValueError(scenario["question"])
        return trajectory

    group = await make_group_rollout_fn(attempt, n=3)("m", {"question": "q"}, "c")
    assert [t.reward for t in group] == [0, 2] and [e.message for e in group.exceptions] == ["q"]
    assert all(t.metadata == {"model": "m", "config": "c"} for t in group)
    assert len(set(seen)) == 3 and None not in seen, "each attempt is a rollout of its own"
    with pytest.raises(ValueError, match="at least 1"):
        make_group_rollout_fn(attempt, n=0)

    async def play(*given: Any) -> Any:
        return art.Trajectory(), 1.0

    group = await make_group_rollout_fn(play, n=1)("m", {}, None)
    assert "play() returned a tuple, not a Trajectory" in group.exceptions[0].message

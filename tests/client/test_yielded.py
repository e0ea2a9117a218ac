from __future__ import annotations

import asyncio

import pytest

from art.client.capture import capture_yielded_trajectory, yield_trajectory
from art.rollout_tasks import current_rollout
from art.trajectories import Trajectory


async def test_the_last_one_counts_also_from_a_task():
    async def deep() -> str:
        yield_trajectory(Trajectory(reward=1.0))
        await asyncio.create_task(later())
        return "the program's own result"

    async def later() -> None:
        yield_trajectory(Trajectory(reward=2.0))

    trajectory = await capture_yielded_trajectory(deep())
    assert trajectory.reward == 2.0


async def test_nested_captures_and_rollouts():
    async def inner() -> None:
        yield_trajectory(Trajectory(reward=1.0))

    async def outer() -> None:
        yield_trajectory(Trajectory(reward=3.0))
        assert (await capture_yielded_trajectory(inner())).reward == 1.0

    first, second = await asyncio.gather(
        capture_yielded_trajectory(outer()), capture_yielded_trajectory(outer())
    )
    assert first.reward == second.reward == 3.0
    assert first.rollout_id and second.rollout_id and first.rollout_id != second.rollout_id
    assert current_rollout() is None


async def test_nothing_yielded_and_nobody_there():
    async def silent() -> None:
        return None

    with pytest.raises(RuntimeError, match="No trajectory yielded"):
        await capture_yielded_trajectory(silent())
    # There is no shared place that the trajectory of a stray call could end up in.
    with pytest.raises(RuntimeError, match="capture_yielded_trajectory"):
        yield_trajectory(Trajectory())

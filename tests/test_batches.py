from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

import art


async def rollout(reward: float | Exception, wait: int = 0) -> art.Trajectory:
    for _ in range(wait):
        await asyncio.sleep(0)
    if isinstance(reward, Exception):
        raise reward
    return art.Trajectory(reward=reward)


async def test_batches_in_order_of_completion_the_last_may_be_short():
    groups = (art.TrajectoryGroup([rollout(float(i), wait=10 * (5 - i))]) for i in range(5))
    batches = [
        [g.trajectories[0].reward for g in batch]
        async for batch in art.trajectory_group_batches(groups, batch_size=2)
    ]
    assert batches == [[4, 3], [2, 1], [0]]


async def test_at_most_so_many_groups_run():
    running = most = 0

    async def group(i: int) -> art.TrajectoryGroup:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return art.TrajectoryGroup([art.Trajectory(reward=i)])

    async for _ in art.trajectory_group_batches(
        (group(i) for i in range(20)), batch_size=2, max_concurrent_batches=2
    ):
        pass
    assert most == 4


async def test_each_batch_has_its_own_budget_of_failures():
    def groups():
        for _ in range(3):
            yield art.TrajectoryGroup([rollout(1.0), rollout(ValueError("x"))])

    batches = [
        b
        async for b in art.trajectory_group_batches(
            groups(), batch_size=1, max_batch_exceptions=1, max_concurrent_batches=1
        )
    ]
    assert [len(batch[0].exceptions) for batch in batches] == [1, 1, 1]
    with pytest.raises(ValueError, match="x"):
        async for _ in art.trajectory_group_batches(groups(), batch_size=1):
            pass


@pytest.mark.parametrize(("share", "raises"), [(0.5, False), (0.25, True)])
async def test_a_share_is_that_of_a_batch(share, raises):
    def groups():
        for _ in range(4):
            yield art.TrajectoryGroup([rollout(1.0), rollout(ValueError("x"))])

    async def run() -> list[int]:
        options = {"batch_size": 2, "max_batch_exceptions": share, "max_concurrent_batches": 1}
        return [len(batch) async for batch in art.trajectory_group_batches(groups(), **options)]

    if raises:
        with pytest.raises(ValueError, match="x"):
            await run()
    else:
        assert await run() == [2, 2]


@pytest.mark.slow
async def test_skipped_batches_are_never_run_and_never_reported():
    gc.collect()  # what earlier tests left is not this one's
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups = [art.TrajectoryGroup([rollout(float(i))]) for i in range(6)]
        batches = [
            [g.trajectories[0].reward for g in batch]
            async for batch in art.trajectory_group_batches(groups, batch_size=2, skip_batches=2)
        ]
        gc.collect()
    assert batches == [[4, 5]]


async def test_leaving_the_loop_cancels_what_still_runs():
    cancelled = 0

    async def forever() -> art.Trajectory:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        finally:
            cancelled += 1
        raise AssertionError

    batches = art.trajectory_group_batches(
        [art.TrajectoryGroup([rollout(1.0)]), art.TrajectoryGroup([forever(), forever()])], batch_size=1
    )
    assert len(await anext(batches)) == 1
    await batches.aclose()
    assert cancelled == 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="batch_size=0"):
        await anext(art.trajectory_group_batches([], batch_size=0))

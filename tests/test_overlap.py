"""The overlapped loop: one step is trained while the next is gathered."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import art
from waiting import DEADLINE_S, turns


class Registered:
    """What the loop asks a model for."""

    def __init__(self, step: int) -> None:
        self.step = step

    async def get_step(self) -> int:
        return self.step


def group(step: int) -> list[art.TrajectoryGroup]:
    return [art.TrajectoryGroup([art.Trajectory(reward=step)])]


async def test_the_next_groups_are_gathered_while_the_body_trains() -> None:
    begun: list[int] = []

    async def gather(step: int) -> list[art.TrajectoryGroup]:
        begun.append(step)
        await asyncio.sleep(0)
        return group(step)

    model: Any = Registered(3)
    seen = []
    async for step, groups in art.overlapped(model, gather, steps=6):
        await turns()  # training
        seen.append((step, groups[0].trajectories[0].reward, list(begun)))
    assert seen == [(3, 3, [3, 4]), (4, 4, [3, 4, 5]), (5, 5, [3, 4, 5])]
    assert [step async for step, _ in art.overlapped(Registered(6), gather, steps=6)] == []  # type: ignore[arg-type]
    assert begun == [3, 4, 5]


async def test_leaving_the_loop_ends_the_gather_and_errors_come_where_groups_are_due() -> None:
    ended: list[int] = []

    async def gather(step: int) -> list[art.TrajectoryGroup]:
        if step == 1:
            raise ValueError("no inbox")
        try:
            await asyncio.sleep(0 if step == 0 else 60)
        finally:
            ended.append(step)
        return group(step)

    model: Any = Registered(0)
    loop = art.overlapped(model, gather, steps=9)
    assert (await anext(loop))[0] == 0
    with pytest.raises(ValueError, match="no inbox"):
        await anext(loop)

    loop = art.overlapped(Registered(0), lambda step: gather(2 * step), steps=9)  # type: ignore[arg-type]
    await anext(loop)
    await turns()
    await loop.aclose()
    assert ended == [0, 0, 2]
    with pytest.raises(ValueError, match="steps=-1"):
        await anext(art.overlapped(model, gather, steps=-1))


@pytest.mark.parametrize("most", [0, 1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_older_than_allowed_whatever_takes_how_long(most: int, seed: int) -> None:
    """Gathers and training steps of random lengths: the docstring's invariant, and that it is reached."""
    dice, first, steps = random.Random(seed), 2, 14
    model: Any = Registered(first)
    under_way: set[int] = set()
    side_by_side: list[int] = []
    requests: dict[int, list[int]] = {}
    """Step -> the model's step at each of its requests."""

    async def gather(step: int) -> list[art.TrajectoryGroup]:
        under_way.add(step)
        side_by_side.append(len(under_way))
        seen = requests.setdefault(step, [])
        for _ in range(dice.choice([1, 1, 2, 30])):
            seen.append(model.step)
            await asyncio.sleep(0)
        under_way.remove(step)
        return group(step)

    trained = []
    async for step, groups in art.overlapped(model, gather, steps=steps, max_steps_off_policy=most):
        assert [one.trajectories[0].reward for one in groups] == [step] and model.step == step
        trained.append(step)
        for _ in range(dice.choice([1, 5, 40])):
            assert max(under_way, default=step) <= step + most
            await asyncio.sleep(0)  # training
        model.step = step + 1
    assert trained == list(range(first, steps)) == sorted(requests)
    assert {step: seen[0] for step, seen in requests.items()} == {
        step: max(first, step - most) for step in trained
    }
    ages = [step - sampled for step, seen in requests.items() for sampled in seen]
    assert max(ages) == most and min(ages) >= 0
    assert max(side_by_side) == most + 1


async def test_a_slow_step_does_not_keep_the_following_from_being_gathered() -> None:
    ended: set[int] = set()

    async def gather(step: int) -> list[art.TrajectoryGroup]:
        if step == 0:
            async with asyncio.timeout(DEADLINE_S):
                while ended != {1, 2}:  # noqa: ASYNC110 - a set has no event
                    await asyncio.sleep(0)
        ended.add(step)
        return group(step)

    model: Any = Registered(0)
    loop = art.overlapped(model, gather, steps=9, max_steps_off_policy=2)
    assert (await anext(loop))[0] == 0 and ended == {0, 1, 2}
    await loop.aclose()


async def test_leaving_a_loop_that_gathers_ahead_leaves_no_task_and_the_next_begins_where_it_is() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def gather(step: int) -> list[art.TrajectoryGroup]:
        begun.append(step)
        try:
            await asyncio.sleep(60 if step >= 2 else 0)
        finally:
            ended.append(step)
        return group(step)

    before = asyncio.all_tasks()
    model: Any = Registered(0)

    async def run(until: int) -> None:
        async for step, _ in art.overlapped(model, gather, steps=9, max_steps_off_policy=3):
            await asyncio.sleep(0)
            model.step = step + 1
            if model.step == until:
                raise KeyError("the body's own error")

    loop = asyncio.create_task(run(9))
    async with asyncio.timeout(DEADLINE_S):
        while model.step < 2 or len(begun) < 6:  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0)
    loop.cancel()  # it waits for the groups of step 2
    with pytest.raises(asyncio.CancelledError):
        await loop
    assert begun == sorted(ended) == [0, 1, 2, 3, 4, 5] and asyncio.all_tasks() == before

    model.step = 0  # as after a kill in the first step: what was in flight is gathered again
    begun.clear()
    with pytest.raises(KeyError):
        await run(1)
    assert begun == [0, 1, 2, 3]


@pytest.mark.parametrize("plain", [False, True])
async def test_an_error_of_a_gather_ahead_waits_for_its_turn(plain: bool) -> None:
    async def fails(step: int) -> list[art.TrajectoryGroup]:
        raise ValueError(f"no inbox at step {step}")

    async def works(step: int) -> list[art.TrajectoryGroup]:
        return group(step)

    def gather(step: int) -> Any:
        if plain and step > 0:
            raise ValueError(f"no inbox at step {step}")
        return works(step) if step < 2 else fails(step)

    model: Any = Registered(0)
    seen = []
    with pytest.raises(ValueError, match=f"no inbox at step {1 if plain else 2}"):
        async for step, _ in art.overlapped(model, gather, steps=9, max_steps_off_policy=4):
            seen.append(step)
            await asyncio.sleep(0)
    assert seen == ([0] if plain else [0, 1])


@pytest.mark.parametrize("wrong", [-1, 1.0, True, None])
async def test_an_odd_number_of_steps_ahead_is_refused(wrong: Any) -> None:
    model: Any = Registered(0)
    with pytest.raises(ValueError, match=f"max_steps_off_policy={wrong!r}"):
        await anext(art.overlapped(model, lambda step: None, steps=1, max_steps_off_policy=wrong))  # type: ignore[arg-type,return-value]

"""The overlapped loop: one step is trained while the next is gathered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import art


class Registered:
    """What the loop asks a model for."""

    def __init__(self, step: int) -> None:
        self.step = step

    def backend(self) -> Any:
        return self

    async def settled_step(self, model: Any) -> int:
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
        await asyncio.sleep(0.01)  # training
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
    await asyncio.sleep(0)
    await loop.aclose()
    assert ended == [0, 0, 2]
    with pytest.raises(ValueError, match="steps=-1"):
        await anext(art.overlapped(model, gather, steps=-1))

"""The plain loop, overlapped: while one step is trained, the groups of the next are gathered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from art.errors import ConfigurationError
from art.rollouts import cancel_all
from art.trajectories import TrajectoryGroup

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel

Gather = Callable[[int], Awaitable[list[TrajectoryGroup]]]
"""A step -> the groups that are trained from it."""


async def overlapped(
    model: AnyTrainableModel, gather: Gather, *, steps: int
) -> AsyncIterator[tuple[int, list[TrajectoryGroup]]]:
    """Yield `(step, groups)` for each step up to `steps`; meanwhile `gather(step + 1)` is under way.

        async for step, groups in art.overlapped(model, gather, steps=20):
            await model.train(groups)

    So rollouts are at most one step off policy: those of step k + 1 begin with the adapter of step k, and
    their requests get that of step k + 1 as soon as it is served.

    The loop goes on where the model is: its first step is the model's newest, after training jobs that an
    earlier program left have ended. What was gathered and not trained is gathered again. Leaving the loop
    cancels the gather that is under way; its error is raised where its groups are due.

    Raises ConfigurationError for `steps` below 0, and what `gather` raises.
    """
    if steps < 0:
        raise ConfigurationError(f"overlapped({steps=}): it is the step to end at, 0 or more")
    first = await _settled_step(model)
    if first >= steps:
        return
    following = asyncio.ensure_future(gather(first))
    try:
        for step in range(first, steps):
            groups = await following
            if step + 1 < steps:
                following = asyncio.ensure_future(gather(step + 1))
            yield step, groups
    finally:
        await cancel_all([following])


async def _settled_step(model: AnyTrainableModel) -> int:
    settled = getattr(model.backend(), "settled_step", None)
    step: int = await (model.get_step() if settled is None else settled(model))
    return step

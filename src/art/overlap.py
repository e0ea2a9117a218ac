"""The plain loop, overlapped: while one step is gathered and trained, the next ones are gathered as well."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

from art.errors import ConfigurationError
from art.rollouts import cancel_all
from art.trajectories import TrajectoryGroup

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel

Gather = Callable[[int], Awaitable[list[TrajectoryGroup]]]
"""A step -> the groups that are trained from it."""


async def overlapped(
    model: AnyTrainableModel, gather: Gather, *, steps: int, max_steps_off_policy: int = 1
) -> AsyncGenerator[tuple[int, list[TrajectoryGroup]], None]:
    """Yield `(step, groups)` for each step up to `steps`, while the groups of later steps are gathered.

        async for step, groups in art.overlapped(model, gather, steps=20):
            await model.train(groups)

    With n = `max_steps_off_policy`, `gather(step)` begins as soon as the body has trained all steps before
    step - n; the first n + 1 begin at once. So

    - groups are yielded in the order of their steps, and the body runs at most n times between the beginning
      of a gather and the turn of its groups: if it trains once each time, no sample is more than n steps off
      policy, however long a rollout takes. Requests get each newer adapter as soon as it is served;
    - at most n + 1 gathers are under way at once, so n + 1 times the requests of one step;
    - with 0 the loop is the blocking one: nothing is gathered while the body trains.

    The loop goes on where the model is: its first step is the model's newest, after training jobs that an
    earlier program left have ended. What was gathered and not trained is gathered again. Leaving the loop
    cancels the gathers that are under way; the error of one is raised where its groups are due.

    Raises ConfigurationError for `steps` or `max_steps_off_policy` below 0, and what `gather` raises.
    """
    for name, value, meaning in (
        ("steps", steps, "it is the step to end at, 0 or more"),
        ("max_steps_off_policy", max_steps_off_policy, "so many steps are gathered ahead, 0 or more"),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigurationError(f"overlapped({name}={value!r}): {meaning}")
    first = await _settled_step(model)
    under_way: deque[asyncio.Task[list[TrajectoryGroup]]] = deque()
    try:
        for step in range(first, steps):
            while (ahead := step + len(under_way)) < steps and len(under_way) <= max_steps_off_policy:
                under_way.append(asyncio.create_task(_gathered(gather, ahead), name=f"gather {ahead}"))
            groups = await under_way[0]
            under_way.popleft()
            yield step, groups
    finally:
        await cancel_all(under_way)


async def _gathered(gather: Gather, step: int) -> list[TrajectoryGroup]:
    """In the task, so that an error of any `gather` is raised where its groups are due."""
    return await gather(step)


async def _settled_step(model: AnyTrainableModel) -> int:
    settled = getattr(model.backend(), "settled_step", None)
    step: int = await (model.get_step() if settled is None else settled(model))
    return step

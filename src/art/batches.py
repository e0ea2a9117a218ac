"""Loops that gather while they train: batches of completed groups, and the plain loop, overlapped.

`trajectory_group_batches` yields groups as they complete while later ones still run; `overlapped` gathers the
next steps' groups while one step is trained.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.gather import as_group, wrap_group_awaitable
from art.gather_context import GatherContext, set_gather_context
from art.rollout_tasks import cancel_all, close_unstarted, task_failure
from art.tracking.progress import open_progress
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel


async def trajectory_group_batches(
    groups: Iterable[Awaitable[TrajectoryGroup | Iterable[Trajectory]]],
    *,
    batch_size: int,
    max_batch_exceptions: int | float = 0,
    max_concurrent_batches: int = 4,
    skip_batches: int = 0,
    pbar_desc: str | None = "batches",
    pbar_total_completion_tokens: bool = False,
) -> AsyncIterator[list[TrajectoryGroup]]:
    """Yields lists of `batch_size` groups in the order in which they complete; the last may be shorter.

    At most `batch_size * max_concurrent_batches` groups run at a time. Each batch forgives
    `max_batch_exceptions` failed rollouts, a number or (0 < x < 1) a share of a batch's rollouts. The first
    `skip_batches * batch_size` groups are dropped unrun. Leaving the loop cancels what still runs.
    """
    _check_batches(batch_size, max_concurrent_batches, pbar_total_completion_tokens)
    waiting = iter(groups)
    for _ in range(skip_batches * batch_size):
        close_unstarted(next(waiting, None))
    context = GatherContext(max_exceptions=max_batch_exceptions)
    sizes: deque[int] = deque(maxlen=batch_size * max_concurrent_batches)
    ended: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()
    running: dict[asyncio.Task[Any], Awaitable[Any]] = {}

    def start_more() -> None:
        while len(running) < batch_size * max_concurrent_batches:
            item = next(waiting, None)
            if item is None:
                return
            sizes.append(getattr(item, "_num_trajectories", 1))
            context.total = round(batch_size * sum(sizes) / len(sizes))
            with set_gather_context(context):
                task = asyncio.create_task(wrap_group_awaitable(item))
            task.add_done_callback(ended.put_nowait)
            running[task] = item

    with open_progress(pbar_desc, None) as context.pbar:
        try:
            batch: list[TrajectoryGroup] = []
            start_more()
            while running:
                running.pop(task := await ended.get())
                if (error := task_failure(task)) is not None:
                    raise error
                if (group := as_group(task.result())) is not None:
                    batch.append(group)
                start_more()
                if len(batch) == batch_size:
                    context.failures.log_count(context.total)
                    yield batch
                    batch = []
                    context.reset()
            context.failures.log_count(context.total)
            if batch:
                yield batch
        finally:
            await cancel_all(list(running))
            for item in [*running.values(), *waiting]:  # a task may be cancelled before its first step
                close_unstarted(item)


def _check_batches(batch_size: int, max_concurrent_batches: int, pbar_total_completion_tokens: bool) -> None:
    if batch_size < 1 or max_concurrent_batches < 1:
        raise ConfigurationError(f"{batch_size=} and {max_concurrent_batches=} must be at least 1")
    if pbar_total_completion_tokens:
        warnings.warn(
            "pbar_total_completion_tokens has no effect and will go", DeprecationWarning, stacklevel=3
        )


GatherStep = Callable[[int], Awaitable[list[TrajectoryGroup]]]
"""A step -> the groups that are trained from it."""


async def overlapped(
    model: AnyTrainableModel, gather: GatherStep, *, steps: int, max_steps_off_policy: int = 1
) -> AsyncGenerator[tuple[int, list[TrajectoryGroup]], None]:
    """Yields `(step, groups)` for each step up to `steps`, while the groups of later steps are gathered.

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
    first = await model.get_step()
    under_way: deque[asyncio.Task[list[TrajectoryGroup]]] = deque()
    try:
        for step in range(first, steps):
            while (ahead := step + len(under_way)) < steps and len(under_way) <= max_steps_off_policy:
                under_way.append(asyncio.create_task(_gather_in_task(gather, ahead), name=f"gather {ahead}"))
            groups = await under_way[0]
            under_way.popleft()
            yield step, groups
    finally:
        await cancel_all(under_way)


async def _gather_in_task(gather: GatherStep, step: int) -> list[TrajectoryGroup]:
    """Gathers inside the task, so that an error of any `gather` is raised when its groups are due."""
    return await gather(step)

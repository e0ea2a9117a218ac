"""Batches of completed groups while later groups still run."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any

from art.errors import ConfigurationError
from art.gather import as_group, wrap_group_awaitable
from art.gather_context import GatherContext, set_gather_context
from art.rollouts import cancel_all, close_unstarted, failure_of
from art.tracking.progress import open_progress
from art.trajectories import Trajectory, TrajectoryGroup


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
    """Yield lists of `batch_size` groups in the order in which they complete; the last may be shorter.

    At most `batch_size * max_concurrent_batches` groups run at a time. Each batch forgives
    `max_batch_exceptions` failed rollouts, a number or (0 < x < 1) a share of a batch's rollouts. The first
    `skip_batches * batch_size` groups are dropped unrun. Leaving the loop cancels what still runs.
    """
    _check(batch_size, max_concurrent_batches, pbar_total_completion_tokens)
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
                task = await ended.get()
                running.pop(task)
                if (error := failure_of(task)) is not None:
                    raise error
                if (group := as_group(task.result())) is not None:
                    batch.append(group)
                start_more()
                if len(batch) == batch_size:
                    yield batch
                    batch = []
                    context.reset()
            if batch:
                yield batch
        finally:
            await cancel_all(list(running))
            for item in [*running.values(), *waiting]:  # a task may be cancelled before its first step
                close_unstarted(item)


def _check(batch_size: int, max_concurrent_batches: int, pbar_total_completion_tokens: bool) -> None:
    if batch_size < 1 or max_concurrent_batches < 1:
        raise ConfigurationError(f"{batch_size=} and {max_concurrent_batches=} must be at least 1")
    if pbar_total_completion_tokens:
        warnings.warn(
            "pbar_total_completion_tokens has no effect and will go", DeprecationWarning, stacklevel=3
        )

"""Running rollouts side by side: none is left behind, whatever happens to its siblings."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from art.capture import in_rollout
from art.gather_context import GatherContext, get_gather_context, record_metrics
from art.trajectories import Trajectory, TrajectoryGroup

T = TypeVar("T")

CANCEL_DEADLINE_S = 30.0
"""How long a cancelled rollout may take to clean up before the gather goes on without it."""

log = logging.getLogger(__name__)


async def run_all(
    jobs: Sequence[Coroutine[Any, Any, T]], settle: Callable[[int, asyncio.Task[T]], None]
) -> None:
    """Run `jobs` side by side; `settle(index, task)` is called as each ends.

    Whatever ends this early (an error that `settle` raises, a cancellation from outside) cancels the jobs
    that still run and waits for them, so that no task outlives the call.
    """
    ended: asyncio.Queue[asyncio.Task[T]] = asyncio.Queue()
    tasks: dict[asyncio.Task[T], int] = {}
    try:
        for index, job in enumerate(jobs):
            task = asyncio.create_task(job)
            tasks[task] = index
            task.add_done_callback(ended.put_nowait)
        for _ in tasks:
            task = await ended.get()  # each task ends, or this call is cancelled
            settle(tasks[task], task)
    finally:
        await cancel_all(list(tasks))
        for job in jobs:
            close_unstarted(job)


async def cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what still runs and wait until it ended, at most `CANCEL_DEADLINE_S`."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        _, stuck = await asyncio.wait(running, timeout=CANCEL_DEADLINE_S)
        if stuck:
            log.warning("%d cancelled rollouts did not end within %g s", len(stuck), CANCEL_DEADLINE_S)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it as lost


def close_unstarted(job: Any) -> None:
    """A coroutine that never ran would be reported as "never awaited" when it is collected."""
    if isinstance(job, PendingGroup):
        job.close()
    elif inspect.iscoroutine(job) and inspect.getcoroutinestate(job) == inspect.CORO_CREATED:
        job.close()


class PendingGroup:
    """A group whose rollouts are still to run: `await` it once to get the `TrajectoryGroup`."""

    def __init__(self, group: type[TrajectoryGroup], items: list[Any], fields: dict[str, Any]) -> None:
        self._group, self._items, self._fields = group, items, fields
        self._awaited = False
        self._num_trajectories = len(items)

    def __await__(self) -> Generator[Any, None, TrajectoryGroup]:
        if self._awaited:
            raise RuntimeError("this TrajectoryGroup was already awaited; make a new one for new rollouts")
        self._awaited = True
        return self._run().__await__()

    def close(self) -> None:
        """Drop rollouts that never started."""
        for item in self._items:
            close_unstarted(item)

    async def _run(self) -> TrajectoryGroup:
        context = get_gather_context()
        context.total = context.total or len(self._items)
        context.counted = True
        results = list(self._items)
        waiting = [index for index, item in enumerate(self._items) if inspect.isawaitable(item)]
        for item in self._items:
            if isinstance(item, Trajectory):
                record_metrics(context, item)
                context.update_pbar(1)

        def settle(position: int, task: asyncio.Task[Any]) -> None:
            results[waiting[position]] = settle_rollout(context, task)

        try:
            await run_all([in_rollout(self._items[index]) for index in waiting], settle)
        finally:
            self.close()
        return self._group(results, **self._fields)


def settle_rollout(context: GatherContext, task: asyncio.Task[Any]) -> Trajectory | BaseException:
    """Count one ended rollout. Returns its trajectory, or its error if the context forgives it."""
    error = failure_of(task)
    if error is None and not isinstance(task.result(), Trajectory):
        error = TypeError(f"a rollout returned {task.result()!r}, not a Trajectory")
    if error is not None:
        context.fail(error)
        return error
    record_metrics(context, task.result())
    context.update_pbar(1)
    trajectory: Trajectory = task.result()
    return trajectory


def failure_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Why a task failed, or None. KeyboardInterrupt and SystemExit are raised: they are no failure of the
    rollout.
    """
    if task.cancelled():
        return asyncio.CancelledError("the rollout was cancelled")
    error = task.exception()
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    return error

"""Running rollouts side by side: none is left behind, whatever happens to its siblings."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from art.capture import in_rollout
from art.tracking.progress import Progress
from art.trajectories import Trajectory, TrajectoryGroup, is_choice
from art.types import Unscored

T = TypeVar("T")

CANCEL_DEADLINE_S = 30.0
"""How long a cancelled rollout may take to clean up before the gather goes on without it."""

log = logging.getLogger(__name__)


@dataclass
class GatherContext:
    """The books of one gather: what its bar shows, and how many failures it still forgives."""

    pbar: Progress | None = None
    metric_sums: Counter[str] = field(default_factory=Counter)
    metric_divisors: Counter[str] = field(default_factory=Counter)
    max_metrics: int | None = None
    max_exceptions: int | float = 0
    """A number of rollouts, or with 0 < x < 1 that share of `total`."""
    increment_pbar: bool = True
    total: int = 0

    def update_pbar(self, n: int) -> None:
        """Move the bar `n` rollouts on and show the means so far."""
        if self.pbar is None:
            return
        names = [name for name in self.metric_divisors if name != "completion_tokens"][: self.max_metrics]
        if "completion_tokens" in self.metric_divisors:
            names.append("completion_tokens")
        means = {name: self.metric_sums[name] / self.metric_divisors[name] for name in names}
        if failed := self.metric_sums["exceptions"]:
            means["exceptions"] = failed
        self.pbar.advance(n if self.increment_pbar else 0, means)

    def too_many_exceptions(self) -> bool:
        """Whether more rollouts failed than `max_exceptions` allows."""
        share = 0 < self.max_exceptions < 1
        allowed = self.max_exceptions * self.total if share else self.max_exceptions
        return self.metric_sums["exceptions"] > allowed

    def fail(self, error: BaseException) -> None:
        """Count a failed rollout; raises its error when it is one too many."""
        self.metric_sums["exceptions"] += 1
        self.update_pbar(1)
        if self.too_many_exceptions():
            raise error

    def reset(self) -> None:
        """Forget what was counted. The limits stay."""
        self.metric_sums.clear()
        self.metric_divisors.clear()


_CONTEXT: ContextVar[GatherContext | None] = ContextVar("art_gather", default=None)


def get_gather_context() -> GatherContext:
    """The context of the gather this code runs in; outside of one a fresh context that nobody shares."""
    return _CONTEXT.get() or GatherContext()


@contextmanager
def set_gather_context(context: GatherContext) -> Iterator[GatherContext]:
    """Rollouts inside count in `context`."""
    token = _CONTEXT.set(context)
    try:
        yield context
    finally:
        _CONTEXT.reset(token)


def record_metrics(context: GatherContext, trajectory: Trajectory) -> None:
    """Add a finished rollout to the means. Choices with logprobs also give its `completion_tokens`, a mean a
    turn.
    """
    tokens = [
        len(content) for item in trajectory.messages_and_choices if (content := _logprobs(item)) is not None
    ]
    if tokens:
        trajectory.metrics["completion_tokens"] = sum(tokens) / len(tokens)
    shown: dict[str, Any] = {} if isinstance(trajectory.reward, Unscored) else {"reward": trajectory.reward}
    for name, value in {**shown, **trajectory.metrics}.items():
        if value is not None:
            context.metric_sums[name] += value
            context.metric_divisors[name] += 1


def _logprobs(item: Any) -> list[Any] | None:
    logprobs = getattr(item, "logprobs", None) if is_choice(item) else None
    return logprobs.content if logprobs is not None else None


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
        context = _CONTEXT.get() or GatherContext(total=len(self._items))
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

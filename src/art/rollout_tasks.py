"""Rollouts as tasks: each in a scope of its own, run side by side.

A scope is an id in a context variable, sent along with each completion request. Every rollout that
`TrajectoryGroup` or a gather runs gets a fresh id in its own task. The ids let the server tell concurrent
rollouts of one scenario apart; without one it matches conversations by their text.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import uuid4

from art.errors import ConfigurationError

CANCEL_DEADLINE_S = 30.0
"""How long a cancelled rollout may take to clean up before the gather goes on without it."""

T = TypeVar("T")
W = TypeVar("W")

log = logging.getLogger(__name__)

_ROLLOUT: ContextVar[str | None] = ContextVar("art_rollout", default=None)


def current_rollout() -> str | None:
    """Returns the id of the rollout this code runs in, or None outside of one."""
    return _ROLLOUT.get()


@contextmanager
def rollout_scope(rollout_id: str | None = None) -> Iterator[str]:
    """Assigns the requests inside the block to one rollout. The gather functions do this themselves."""
    rollout_id = rollout_id or uuid4().hex
    if not (rollout_id.isascii() and rollout_id.isprintable()):
        raise ConfigurationError(
            f"rollout id {rollout_id!r}: only printable ASCII fits into a request's header"
        )
    token = _ROLLOUT.set(rollout_id)
    try:
        yield rollout_id
    finally:
        _ROLLOUT.reset(token)


async def in_rollout(work: Awaitable[T]) -> T:
    """Awaits `work` as a rollout of its own. Run it as a task, so that the id stays in that task's
    context.
    """
    with rollout_scope():
        return await work


async def run_side_by_side(
    work: Sequence[W],
    run: Callable[[W], Coroutine[Any, Any, T]],
    on_end: Callable[[int, asyncio.Task[T]], None],
) -> None:
    """Runs `run(item)` of each item of `work` concurrently; `on_end(index, task)` is called as each ends.

    Whatever ends this early (an error that `on_end` raises, a cancellation from outside) cancels the tasks
    that still run and waits for them, so that no task outlives the call. Work that never started is closed.
    """
    ended: asyncio.Queue[asyncio.Task[T]] = asyncio.Queue()
    tasks: dict[asyncio.Task[T], int] = {}
    jobs = [run(item) for item in work]
    try:
        for index, job in enumerate(jobs):
            task = asyncio.create_task(job)
            tasks[task] = index
            task.add_done_callback(ended.put_nowait)
        for _ in tasks:
            task = await ended.get()  # each task ends, or this call is cancelled
            on_end(tasks[task], task)
    finally:
        try:
            await cancel_all(list(tasks))
        finally:
            for unstarted in (*jobs, *work):
                close_unstarted(unstarted)


async def cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancels running tasks and waits for their end, at most `CANCEL_DEADLINE_S`."""
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


def close_unstarted(work: Any) -> None:
    """Closes a coroutine that never ran, which Python would report as "never awaited", or a group of such."""
    if hasattr(work, "close_unstarted"):
        work.close_unstarted()
    elif inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        work.close()


def task_failure(task: asyncio.Task[Any]) -> BaseException | None:
    """Returns why a task failed, or None. KeyboardInterrupt and SystemExit are raised: they are no failure of
    the rollout.
    """
    if task.cancelled():
        return asyncio.CancelledError("the rollout was cancelled")
    error = task.exception()
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    return error

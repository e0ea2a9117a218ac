"""A trajectory that writes itself: the calls of a coroutine or a block, whichever client makes them.

    trajectory = await art.trajectory(agent(scenario))           every dialect, kept as `exchanges`, too
    trajectory = await art.capture_auto_trajectory(agent(...))   chat completions alone

Heard are our clients, and whatever speaks through httpx, aiohttp or requests. Inside,
`art.current_trajectory` gives the trajectory, to set its reward. A coroutine whose result is something else
hands a trajectory out with `yield_trajectory`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from contextvars import ContextVar
from inspect import iscoroutine
from typing import Any, Literal, overload

from art.errors import NoTrajectoryError
from art.recording.scope import captured_trajectory, recorded
from art.rollout_tasks import rollout_scope
from art.trajectories import Trajectory
from art.types import kind_of


@overload
def current_trajectory(require: Literal[True]) -> Trajectory: ...


@overload
def current_trajectory(require: bool = False) -> Trajectory | None: ...


def current_trajectory(require: bool = False) -> Trajectory | None:
    """The trajectory that is recorded here, to set its reward and metrics; None outside of a scope.

    require: raise NoTrajectoryError (a RuntimeError) instead of giving None.
    """
    trajectory: Trajectory | None = captured_trajectory()
    if trajectory is None and require:
        raise NoTrajectoryError(
            "no trajectory is recorded here: run this inside `await art.trajectory(...)` or "
            "`with art.Trajectory()`"
        )
    return trajectory


async def trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Run a coroutine and return the trajectory of its calls; its own result is dropped.

    Each call that was answered is one of its `exchanges`, streams included. A request that repeats a
    conversation continues it; any other begins an additional history. It is a rollout of its own. Raises:
    TypeError for a task or a future, whose calls began elsewhere.
    """
    if not iscoroutine(coroutine):
        raise TypeError(f"art.trajectory() was given {kind_of(coroutine)}: give it a coroutine, `agent(...)`")
    with rollout_scope(), Trajectory() as captured:
        await coroutine
    return captured


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...


@overload
def auto_trajectory(*, required: bool = False) -> Trajectory | None: ...


def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """Does what `current_trajectory` does, by its older name."""
    if required and captured_trajectory() is None:
        raise NoTrajectoryError(
            "No auto trajectory in context. Run this code inside `await art.capture_auto_trajectory(...)`"
        )
    return current_trajectory()


async def capture_auto_trajectory(coro: Awaitable[Any]) -> Trajectory:
    """Run `coro` and return the trajectory of its chat completions; its own result is dropped.

    A request that repeats a conversation continues it; any other begins an additional history. Captures may
    be nested: the inner one hears. Each is a rollout of its own.
    """
    with rollout_scope():
        captured = Trajectory()
        with recorded(captured, with_exchanges=False):
            await coro
    return captured.finish()


_YIELDED: ContextVar[list[Trajectory] | None] = ContextVar("art_yielded_trajectories", default=None)


def yield_trajectory(trajectory: Trajectory) -> None:
    """Hand a trajectory to the innermost `capture_yielded_trajectory`; the last one handed out counts.

    Raises NoTrajectoryError (a RuntimeError) outside of a capture.
    """
    yielded = _YIELDED.get()
    if yielded is None:
        raise NoTrajectoryError(
            "nobody captures this trajectory: run this inside `await art.capture_yielded_trajectory(...)`"
        )
    yielded.append(trajectory)


async def capture_yielded_trajectory(coro: Awaitable[Any]) -> Trajectory:
    """Run `coro`, as a rollout of its own, and return the trajectory that it yielded.

    Raises NoTrajectoryError (a RuntimeError) when it yielded none.
    """
    yielded: list[Trajectory] = []  # shared with the tasks that `coro` starts
    token = _YIELDED.set(yielded)
    try:
        with rollout_scope():
            await coro
    finally:
        _YIELDED.reset(token)
    if not yielded:
        raise NoTrajectoryError("No trajectory yielded: call `art.yield_trajectory(trajectory)` inside")
    return yielded[-1]

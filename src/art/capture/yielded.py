"""A trajectory handed out from deep inside a coroutine whose result is something else."""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any

from art.capture.scope import rollout_scope
from art.errors import NoTrajectoryError
from art.trajectories import Trajectory

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

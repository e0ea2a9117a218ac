"""A trajectory that writes itself: the chat completions of a coroutine, whichever client asks for them."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, overload

from art.capture.foreign import foreign_clients_heard
from art.capture.listening import listening
from art.capture.recorder import Recorder
from art.capture.scope import rollout_scope
from art.errors import NoTrajectoryError
from art.trajectories import Trajectory

_CAPTURED: ContextVar[Trajectory | None] = ContextVar("art_auto_trajectory", default=None)


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...


@overload
def auto_trajectory(*, required: bool = False) -> Trajectory | None: ...


def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """The trajectory that is being captured here, to set its reward and metrics; None outside of a capture.

    required: raise NoTrajectoryError (a RuntimeError) instead of giving None.
    """
    trajectory = _CAPTURED.get()
    if trajectory is None and required:
        raise NoTrajectoryError(
            "No auto trajectory in context. Run this code inside `await art.capture_auto_trajectory(...)`"
        )
    return trajectory


async def capture_auto_trajectory(coro: Awaitable[Any]) -> Trajectory:
    """Run `coro` and return the trajectory of its chat completions; its own result is dropped.

    Heard are our clients, and any client on httpx (openai, litellm, langchain) that is used inside, streams
    included. A request that repeats a conversation continues it; any other begins an additional history.
    Captures may be nested: the inner one hears. Each is a rollout of its own.
    """
    with rollout_scope():
        trajectory = Trajectory()
        with foreign_clients_heard(), _recorded(trajectory):
            await coro
    return trajectory.finish()


@contextmanager
def _recorded(trajectory: Trajectory) -> Iterator[None]:
    recorder = Recorder(trajectory)
    token = _CAPTURED.set(trajectory)
    try:
        with listening(recorder):
            yield
    finally:
        recorder.close()
        _CAPTURED.reset(token)

"""Which rollout is running here: an id in a context variable, sent along with each completion request.

Every rollout that `TrajectoryGroup` or a gather runs gets a fresh id in its own task. The ids let the server
tell concurrent attempts at one scenario apart; without one it matches conversations by their text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar
from uuid import uuid4

from art.errors import ConfigurationError

T = TypeVar("T")

_ROLLOUT: ContextVar[str | None] = ContextVar("art_rollout", default=None)


def current_rollout() -> str | None:
    """The id of the rollout this code runs in, or None outside of one."""
    return _ROLLOUT.get()


@contextmanager
def rollout_scope(rollout_id: str | None = None) -> Iterator[str]:
    """Everything inside belongs to one rollout. For loops of your own; the gather functions do it by
    themselves.
    """
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
    """Await `work` as a rollout of its own. Run it as a task, so that the id stays in that task's context."""
    with rollout_scope():
        return await work

"""A rollout around a function that runs a graph."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from art.langgraph.endpoint import CURRENT_CONFIG
from art.remote.rollout_scope import rollout
from art.trajectories import Trajectory

if TYPE_CHECKING:
    from art.model import TrainableModel

T = TypeVar("T", bound=Trajectory)
_log = logging.getLogger(__name__)


def wrap_rollout(
    model: TrainableModel[Any, Any], fn: Callable[..., Awaitable[T]], **options: Any
) -> Callable[..., Awaitable[T]]:
    """`fn`, whose calls of `init_chat_model`'s model become the conversations of the trajectory it returns.

    `fn` sets reward, metrics and metadata; its messages, tools and further histories are replaced by what was
    said, whichever nodes, subgraphs or threads said it. options: those of `art.rollout` (aliases, step, ...).
    The newest step answers each call. A trajectory of which nothing was heard is left as it is, with a
    warning. Raises what `fn` raises, and TypeError when it returns no Trajectory.
    """

    @functools.wraps(fn)
    async def wrapped(*args: Any, **kwargs: Any) -> T:
        async with rollout(model, **options) as r:
            config = {"logger": None, "base_url": r.base_url, "api_key": r.api_key, "model": r.model_name}
            token = CURRENT_CONFIG.set(config)
            try:
                returned = await fn(*args, **kwargs)
            finally:
                CURRENT_CONFIG.reset(token)
        if not isinstance(returned, Trajectory):
            raise TypeError(f"{fn!r} returned {returned!r}; a rollout returns an art.Trajectory")
        return _with_conversations(returned, r.trajectory)

    return wrapped


def _with_conversations(returned: T, heard: Trajectory) -> T:
    returned.rollout_id = heard.rollout_id
    if not heard.messages_and_choices:
        _log.warning(
            "rollout %s: no completion was heard; use the chat model of art.langgraph.init_chat_model in "
            "the graph. The trajectory is left as it was returned",
            heard.rollout_id,
        )
        return returned
    for name in (
        "messages_and_choices",
        "tools",
        "additional_histories",
        "initial_policy_version",
        "final_policy_version",
    ):
        setattr(returned, name, getattr(heard, name))
    returned.metrics = {**heard.metrics, **returned.metrics}
    return returned

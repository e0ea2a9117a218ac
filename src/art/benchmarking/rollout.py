"""One number for a model: the mean reward of some rollouts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.gather import gather_trajectories
from art.trajectories import Trajectory
from art.types import Unscored

if TYPE_CHECKING:
    from art.model import Model

log = logging.getLogger(__name__)


async def benchmark_rollout(
    model: Model[Any, Any], num_rollouts: int, rollout: Callable[[Any], Awaitable[Trajectory]]
) -> float:
    """The mean reward of `num_rollouts` calls of `rollout(model)`, side by side; unscored ones do not count.

    Raises what a rollout raises, and ConfigurationError when no rollout has a reward.
    """
    trajectories = await gather_trajectories(
        (rollout(model) for _ in range(num_rollouts)), pbar_desc=f"benchmark {getattr(model, 'name', model)}"
    )
    rewards = [t.reward for t in trajectories if not isinstance(t.reward, Unscored)]
    if not rewards:
        raise ConfigurationError(
            f"benchmark_rollout({num_rollouts=}): there is no reward to take the mean of"
        )
    mean = sum(rewards) / len(rewards)
    log.info("%s: mean reward %.4f of %d rollouts", getattr(model, "name", model), mean, len(rewards))
    return mean

"""How rollouts and evaluations of an asynchronous run are written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from art.capture import in_rollout
from art.errors import ConfigurationError
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from art.model import TrainableModel

ScenarioT = TypeVar("ScenarioT", bound=Mapping[str, Any])
_ConfigT = TypeVar("_ConfigT")

RolloutFn = Callable[["TrainableModel[Any, Any]", ScenarioT, _ConfigT], Awaitable[TrajectoryGroup]]
"""One scenario -> a group of attempts."""
SingleRolloutFn = Callable[["TrainableModel[Any, Any]", ScenarioT, _ConfigT], Awaitable[Trajectory]]
"""One scenario -> one attempt."""
Evaluated = list[Trajectory | TrajectoryGroup]
EvalFn = Callable[["TrainableModel[Any, Any]", int, _ConfigT], Awaitable[Evaluated | dict[str, Evaluated]]]
"""A step -> the evaluation's trajectories, or those of several splits."""


def make_group_rollout_fn(
    single_fn: SingleRolloutFn[ScenarioT, _ConfigT], n: int = 4
) -> RolloutFn[ScenarioT, _ConfigT]:
    """Attempts made by `single_fn`, `n` side by side, as one group; failed ones become its exceptions.

    Raises ConfigurationError when `n` is below 1.
    """
    if n < 1:
        raise ConfigurationError(f"make_group_rollout_fn({n=}): at least 1 attempt is needed")

    async def rollout(
        model: TrainableModel[Any, Any], scenario: ScenarioT, config: _ConfigT
    ) -> TrajectoryGroup:
        attempts = (in_rollout(single_fn(model, scenario, config)) for _ in range(n))
        return TrajectoryGroup(await asyncio.gather(*attempts, return_exceptions=True))

    return rollout

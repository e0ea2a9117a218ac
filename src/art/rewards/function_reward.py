"""A user's own function as a reward."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from numbers import Real
from typing import Any, Literal, get_args

from art.errors import BudgetExceededError, ConfigurationError
from art.rewards.reward import Reward, Score, results_or_first_error
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored

Value = float | Unscored | Score
Sees = Literal["trajectory", "group"]
log = logging.getLogger(__name__)


class FunctionReward(Reward):
    """The reward of a function, sync or async.

    sees="trajectory": it is given one trajectory and gives a number, `Unscored` or a `Score`. sees="group":
    it is given the group and gives one of these for each trajectory. An error of the function leaves the
    trajectory (or the group) unscored, with the error as the reason.
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, sees: Sees = "trajectory"
    ) -> None:
        """name: the function's own by default. Raises ConfigurationError where it has none, or for another
        `sees`.
        """
        if sees not in get_args(Sees):
            raise ConfigurationError(f"sees={sees!r}: known are {', '.join(get_args(Sees))}")
        own = str(getattr(function, "__name__", "<lambda>"))
        if not name and own == "<lambda>":
            raise ConfigurationError(f"reward of {function!r}: give it a `name=`")
        self.name = name or own
        self._function, self._sees = function, sees

    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        if self._sees == "trajectory":
            calls = [self._score_trajectory(trajectory) for trajectory in group.trajectories]
            return results_or_first_error(await asyncio.gather(*calls, return_exceptions=True))
        values = await self._call(group)
        if isinstance(values, Unscored):
            return [Score(value=values)] * len(group)
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ConfigurationError(
                f"reward {self.name!r} with sees='group' gave {values!r}: a list with one number for each of "
                f"the group's {len(group)} trajectories is needed"
            )
        return [self._score(value) for value in values]

    async def _score_trajectory(self, trajectory: Trajectory) -> Score:
        return self._score(await self._call(trajectory))

    async def _call(self, subject: Trajectory | TrajectoryGroup) -> Any:
        try:
            value = self._function(subject)
            return await value if isinstance(value, Awaitable) else value
        except (ConfigurationError, BudgetExceededError):
            raise
        except Exception as error:  # noqa: BLE001 - the user's code: any error leaves it unscored
            log.warning("reward %r failed: %s: %s", self.name, type(error).__name__, error)
            return Unscored(f"{self.name}: {type(error).__name__}: {error}")

    def _score(self, value: Any) -> Score:
        if isinstance(value, Score):
            return value
        if isinstance(value, Unscored):
            return Score(value=value)
        if isinstance(value, Real):  # those of numpy are, too
            return Score(value=float(value))
        raise ConfigurationError(
            f"reward {self.name!r} gave {value!r}: a number, `art.Unscored(reason)` or a `Score` is needed"
        )


def as_reward(
    function: Callable[..., Any] | None = None, *, name: str | None = None, sees: Sees = "trajectory"
) -> Any:
    """Make a function a `FunctionReward`: decorator `@as_reward` or `@as_reward(name=..., sees="group")`."""
    if function is None:
        return lambda later: FunctionReward(later, name=name, sees=sees)
    if not callable(function) or inspect.isclass(function):
        raise ConfigurationError(f"as_reward({function!r}): a function of a trajectory is needed")
    return FunctionReward(function, name=name, sees=sees)

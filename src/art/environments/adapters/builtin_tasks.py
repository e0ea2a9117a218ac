"""Built-in tasks as environments: `find_environment("tic-tac-toe")`.

Their defaults are those of `art.environments.tasks`: a task's own limit of tokens, and validation scenarios
that are the quick start's for evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from art.environments import tasks
from art.environments.adapters.environment import SCENARIO_ID, Scenario, check_sizes, check_split
from art.errors import ConfigurationError

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory


class TaskEnvironment:
    """A built-in task.

    seed: which stream of scenarios. train, val: how many scenarios each split has.
    """

    def __init__(self, name: str, /, *, seed: int = 0, train: int = 1000, val: int = 100) -> None:
        check_sizes(name, train, val)
        self.name = name
        self._task = tasks.find(name)
        self._seed = seed
        self._sizes = {"train": train, "val": val}
        if seed == tasks.EVALUATION_SEED:
            raise ConfigurationError(f"environment {name!r}: seed={seed} is that of split 'val'")

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the scenarios of a split; those of "val" are the same for every seed."""
        check_split(self.name, split)
        seed = self._seed if split == "train" else tasks.EVALUATION_SEED
        return [
            Scenario(f"{self.name}/{seed}/{index}", {"seed": seed, "index": index})
            for index in range(self._sizes[split])
        ]

    async def rollout(self, model: Model, scenario: Scenario, **options: Any) -> Trajectory:
        """Runs one rollout; `options` are those of `NamedEnvironment.rollout`."""
        trajectory = await self._task.rollout(
            model, self._task.scenario(scenario.data["seed"], scenario.data["index"]), **options
        )
        trajectory.metadata[SCENARIO_ID] = scenario.id
        return trajectory

    async def close(self) -> None:
        """Does nothing: a task starts nothing."""

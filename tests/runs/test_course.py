"""Which tasks a step has, with which seeds, and what its row says of the judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import art
from art.runs.environment_run import EnvironmentSettings
from art.runs.folder import failures_of, judge_figures, mean_reward
from art.runs.training_run import TaskRollouts, tasks_of_step


class Told(TaskRollouts[str]):
    """Rollouts that keep the seed they were given; every task but "bad" succeeds."""

    async def rollout(self, task: str, *, seed: int | None) -> art.Trajectory:
        if task == "bad":
            raise OSError("gone")
        return art.Trajectory(reward=1.0, metadata={"seed": seed})

    def text_of(self, task: str) -> str:
        return task

    def figures_of(self, trajectory: art.Trajectory) -> Mapping[str, float]:
        return {}


def told(**settings: Any) -> Told:
    return Told(
        art.TrainableModel(name="n", project="p", base_model="b"), EnvironmentSettings.from_options(settings)
    )


def test_every_epoch_has_an_order_of_its_own() -> None:
    train = "012345"
    epochs = [
        [one for step in (0, 1, 2) for one in tasks_of_step(train, 3 * epoch + step, 2, 5)]
        for epoch in (0, 1)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(train) and epochs[0] != epochs[1]
    assert tasks_of_step(train, 0, 6, 6) != epochs[0], "the order depends on the seed"
    assert len(tasks_of_step(train, 0, 8, 5)) == 8, "more than there are: some twice"


async def test_the_seed_of_a_rollout_is_that_of_its_place() -> None:
    async def seeds(rollouts: Told, *tasks: str, seeded: bool = True) -> list[Any]:
        groups = await rollouts.groups(tasks, 2, what="test", seeded=seeded)
        assert [group.metadata["task"] for group in groups] == list(tasks)
        return [one.metadata["seed"] for group in groups for one in group]

    both = await seeds(told(), "a", "b")
    assert len(set(both)) == 4 and await seeds(told(), "b") == both[2:]
    assert await seeds(told(seed=1), "a", "b") != both
    assert await seeds(told(), "a", seeded=False) == [None, None]


async def test_as_many_rollouts_may_fail_as_were_allowed() -> None:
    groups = await told().groups(["good", "bad"], 2, what="test", seeded=False)
    assert sum(len(group) for group in groups) == 2
    assert failures_of(groups) == {"OSError: gone": 2}
    assert mean_reward(groups) == (1.0, 0), "what failed is not worth 0"
    with pytest.raises(OSError, match="gone"):
        await told(max_failed=0.25).groups(["good", "bad"], 2, what="test", seeded=False)


def test_a_step_tells_what_the_judge_and_its_checks_said() -> None:
    group = art.TrajectoryGroup([art.Trajectory(reward=0.5), art.Trajectory(reward=art.Unscored("no"))])
    group.metrics |= {"judge/agreement": 0.5, "other": 3.0}
    second = art.TrajectoryGroup([art.Trajectory(reward=1.0)])
    second.metrics |= {"judge/agreement": 1.0, "judge/alarm": 1.0}
    assert mean_reward([group, second]) == (0.75, 1)
    assert judge_figures([group, second]) == {"judge/agreement": 0.75, "judge/alarm": 1.0}
    assert mean_reward([]) == (None, 0) and judge_figures([]) == {}

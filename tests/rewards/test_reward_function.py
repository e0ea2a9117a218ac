"""A user's function as a reward."""

from __future__ import annotations

from fractions import Fraction

import pytest

from art.errors import ConfigurationError
from art.rewards.function_reward import FunctionReward, as_reward
from art.rewards.reward import Score
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored


@as_reward
def turns(trajectory: Trajectory) -> float:
    return float(len(trajectory.messages_and_choices))


@as_reward(name="slow")
async def waits(trajectory: Trajectory) -> Score:
    return Score(value=0.5, explanation="as always")


@as_reward(sees="group")
def places(group: TrajectoryGroup) -> list[int]:
    return list(range(len(group)))


def group(size: int = 2) -> TrajectoryGroup:
    return TrajectoryGroup([Trajectory() for _ in range(size)])


async def test_a_function_of_a_trajectory_or_a_group_sync_or_async() -> None:
    scored = await (turns + waits + places).score_group(group())
    assert [t.reward for t in scored] == [0.5, 1.5]
    assert scored.trajectories[1].metrics["reward/places"] == 1.0
    assert scored.trajectories[1].metrics["reward/turns"] == 0.0
    assert scored.trajectories[1].logs == ["slow explanation: as always"]


async def test_an_error_leaves_that_trajectory_unscored() -> None:
    def fussy(trajectory: Trajectory) -> float:
        return trajectory.metrics["there"]

    subject = TrajectoryGroup([Trajectory(metrics={"there": 1.0}), Trajectory()])
    scored = await FunctionReward(fussy).score_group(subject)
    assert [t.reward for t in scored] == [1.0, Unscored("fussy: KeyError: 'there'")]


async def test_an_error_of_a_function_of_the_group_leaves_all_unscored() -> None:
    def fussy(group: TrajectoryGroup) -> list[float]:
        raise OSError("gone")

    scored = await FunctionReward(fussy, sees="group").score_group(group())
    assert [t.reward for t in scored] == [Unscored("fussy: OSError: gone")] * 2


async def test_numbers_of_other_libraries_are_numbers() -> None:
    scored = await FunctionReward(lambda trajectory: Fraction(1, 2), name="half").score_group(group())
    assert {trajectory.reward for trajectory in scored} == {0.5}


@pytest.mark.parametrize("value", [None, "0.5", [1.0]])
async def test_what_is_no_score_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="reward 'odd' gave"):
        await FunctionReward(lambda trajectory: value, name="odd").score_group(group())


async def test_a_group_needs_a_list() -> None:
    with pytest.raises(ConfigurationError, match="a list with one number for each of the group's 2"):
        await FunctionReward(lambda group: 1.0, name="odd", sees="group").score_group(group())


def test_misuse_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give it a `name=`"):
        FunctionReward(lambda trajectory: 1.0)
    with pytest.raises(ConfigurationError, match="known are trajectory, group"):
        as_reward(sees="all")(turns)
    with pytest.raises(ConfigurationError, match="a function of a trajectory"):
        as_reward(Trajectory)

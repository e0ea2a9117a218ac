"""Sums of rewards."""

from __future__ import annotations

import pytest

from art.errors import BudgetExceededError, ConfigurationError
from art.rewards.function_reward import FunctionReward
from art.rewards.reward import GroupScores, Reward, Score, Weighted
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored


def source(name: str, *values: float | Unscored | Exception, why: str = "") -> Reward:
    def scores(group: TrajectoryGroup) -> list[Score]:
        if isinstance(values[0], Exception):
            raise values[0]
        return [Score(value=value, explanation=why) for value in values]  # type: ignore[arg-type]

    return FunctionReward(scores, name=name, sees="group")


def group(size: int = 1) -> TrajectoryGroup:
    return TrajectoryGroup([Trajectory() for _ in range(size)])


async def test_a_sum_weighs_its_parts_and_names_them() -> None:
    total = 0.7 * source("ruler", 0.5, why="so so") + 0.3 * source("form", 1.0)
    kept = (await total.score_group(group())).trajectories[0]
    assert kept.reward == pytest.approx(0.65)
    assert kept.metrics == {
        "independent_reward": 0.0,
        "reward/ruler": 0.5,
        "reward/form": 1.0,
        "reward/total": pytest.approx(0.65),
    }
    assert kept.logs == ["ruler explanation: so so"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (lambda a, b: a + b, 3.0),
        (lambda a, b: a - b, -1.0),
        (lambda a, b: sum([a, b]), 3.0),
        (lambda a, b: a * 2 + b, 4.0),
        (lambda a, b: 0.5 * (a + 2 * b), 2.5),
        (lambda a, b: 0.5 * (a + b).with_name("both") + source("c", 1.0), 2.5),
        (lambda a, b: a + b - (source("c", 1.0) + source("d", 1.0)), 1.0),
        (lambda a, b: a.optional() + b.optional(), 3.0),
    ],
)
async def test_operators(expression: object, value: float) -> None:
    total = expression(source("a", 1.0), source("b", 2.0))  # type: ignore[operator]
    assert isinstance(total, Weighted)
    assert (await total.score_group(group())).trajectories[0].reward == value


async def test_the_parts_of_a_sum_are_those_of_an_algorithm_that_normalises_each() -> None:
    reward = 0.7 * source("one", 0.5, 1.0) + 0.3 * source("two", 1.0, 1.0)
    scored = await reward.score_group(group(2))
    assert reward.weights == {"reward/one": 0.7, "reward/two": 0.3}
    for trajectory in scored:
        total = sum(weight * trajectory.metrics[name] for name, weight in reward.weights.items())
        assert trajectory.reward == pytest.approx(total)


def paid(name: str, value: float | Unscored, **turns: float) -> Reward:
    return FunctionReward(lambda one: Score(value=value, turns=turns), name=name)


async def test_rewards_of_turns_add_up_with_the_weights_and_replace_those_of_before() -> None:
    before = TrajectoryGroup([Trajectory(reward=3.0, turn_rewards={"s1": 3.0}, turn_states={"s1": "hall"})])
    total = 2 * paid("a", 1.0, s1=0.5, s2=0.25) - paid("b", 4.0, s2=1.0) + source("c", 0.5)
    kept = (await total.score_group(before)).trajectories[0]
    assert kept.reward == pytest.approx(2 * 1.0 - 4.0 + 0.5)
    assert kept.turn_rewards == {"s1": pytest.approx(1.0), "s2": pytest.approx(0.5 - 1.0)}
    assert kept.turn_states == {"s1": "hall"} and before.trajectories[0].turn_rewards == {"s1": 3.0}
    alone = (await source("c", 0.5).score_group(before)).trajectories[0]
    assert alone.reward == 0.5 and alone.turn_rewards == {}, "they were parts of the reward of before"


async def test_the_reasons_of_turns_are_joined_and_replace_those_of_before() -> None:
    def why(name: str, **reasons: str) -> Reward:
        scored = Score(value=1.0, turns={"s1": 0.5, "s2": 0.5}, turn_reasons=reasons)
        return FunctionReward(lambda one: scored, name=name)

    before = TrajectoryGroup([Trajectory(turn_rewards={"s1": 0.0}, turn_reasons={"s1": "none", "s3": "old"})])
    total = why("a", s1="near", s2="short") + 0.5 * why("b", s1="polite")
    joined = (await total.score_group(before)).trajectories[0]
    assert joined.turn_reasons == {"s1": "near\npolite", "s2": "short"}
    assert (await source("c", 0.5).score_group(before)).trajectories[0].turn_reasons == {}


async def test_an_unscored_rollout_has_no_rewards_of_turns_and_a_number_of_a_turn_is_finite() -> None:
    missing = paid("a", 1.0, s1=1.0) + source("b", Unscored("cut off"))
    assert (await missing.score_group(group())).trajectories[0].turn_rewards == {}
    optional = paid("a", 1.0, s1=1.0) + paid("b", Unscored("cut off")).optional()
    assert (await optional.score_group(group())).trajectories[0].turn_rewards == {"s1": 1.0}
    (odd,) = (await paid("a", 1.0, s1=float("inf"), s2=float("-inf")).score_group(group())).trajectories
    assert isinstance(odd.reward, Unscored) and odd.turn_rewards == {}


async def test_a_missing_part_leaves_the_trajectory_unscored_and_keeps_the_others() -> None:
    total = source("a", Unscored("cut off"), 1.0) + source("b", 0.5, 0.5)
    lost, whole = await total.score_group(group(2))
    assert lost.reward == Unscored("cut off")
    assert lost.metrics["reward/b"] == 0.5 and "reward/a" not in lost.metrics
    assert whole.reward == 1.5


async def test_an_optional_part_that_is_missing_neither_helps_nor_hurts() -> None:
    total = source("a", Unscored("cut off"), 1.0, 0.0).optional() + source("b", 0.5, 0.5, 0.5)
    scored = await total.score_group(group(3))
    assert [t.reward for t in scored] == [1.0, 1.5, 0.5]
    assert scored.trajectories[0].logs == ["a gave no score: cut off"]


async def test_of_what_no_part_scored_nothing_is_known() -> None:
    lost = Unscored("cut off")
    total = source("a", lost, 1.0, lost).optional() + source("b", lost, 0.0, 1.0).optional()
    assert [t.reward for t in await total.score_group(group(3))] == [Unscored("cut off; cut off"), 1.0, 2.0]
    alone = 1 * source("a", lost, lost).optional()
    assert [t.reward for t in await alone.score_group(group(2))] == [lost, lost]


class Watched(Reward):
    """A source with figures of the group."""

    def __init__(self, name: str, **figures: float) -> None:
        self.name = name
        self._figures = {f"judge/{name}": value for name, value in figures.items()}

    async def scores(self, group: TrajectoryGroup) -> list[Score]:
        return [Score(value=1.0) for _ in group]

    async def judge(self, group: TrajectoryGroup) -> GroupScores:
        return GroupScores(scores=await self.scores(group), metrics=self._figures)


async def test_an_alarm_of_one_judge_is_not_hidden_by_another() -> None:
    total = Watched("a", alarm=1.0, agreement=0.1, holdout=0.4) + Watched("b", alarm=0.0, agreement=0.9)
    assert (await total.score_group(group())).metrics == {
        "judge/alarm": 1.0,
        "judge/alarm/a": 1.0,
        "judge/alarm/b": 0.0,
        "judge/agreement/a": 0.1,
        "judge/agreement/b": 0.9,
        "judge/holdout": 0.4,
    }


async def test_a_spent_budget_of_a_part_is_raised() -> None:
    with pytest.raises(BudgetExceededError):
        await (source("a", BudgetExceededError("spent")) + source("b", 1.0)).score_group(group())


def test_two_parts_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="called 'a'"):
        source("a", 1.0) + source("a", 2.0)
    with pytest.raises(ConfigurationError, match="called 'a'"):
        (source("a", 1.0) + source("b", 2.0)).with_name("inner") + source("a", 2.0)
    with pytest.raises(ConfigurationError, match="called 'total'"):
        source("total", 1.0) + source("a", 2.0)


@pytest.mark.parametrize("weight", ["0.5", None, True])
def test_a_weight_is_a_number(weight: object) -> None:
    with pytest.raises(TypeError):
        weight * source("a", 1.0)  # type: ignore[operator]


def test_a_weight_is_finite() -> None:
    with pytest.raises(ConfigurationError, match="weight nan"):
        float("nan") * source("a", 1.0)

"""Rewards of turns: from the program to the entries that are trained, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.batch.algorithms import resolve
from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.client.requests.train_request import train_groups
from art.errors import ConfigurationError
from art.types import LARGEST_REWARDS, known_reward
from art.wire.algorithm import OF_TURNS
from art.wire.jobs import TrainGroup

ASK = {"role": "user", "content": "hello"}


def choice(sample: str | None) -> Choice:
    fields: dict[str, Any] = {} if sample is None else {"sample_id": sample}
    message = {"role": "assistant", "content": "hi"}
    return Choice.model_validate({"index": 0, "finish_reason": "stop", "message": message, **fields})


def test_a_turn_is_named_by_its_choice_or_its_place() -> None:
    first, second = choice("s1"), choice("s2")
    trajectory = art.Trajectory(messages_and_choices=[ASK, first, ASK, second], reward=1.0)
    trajectory.reward_turn(first, 0.5, state="hall")
    trajectory.reward_turn(-1, 0.25)
    trajectory.reward_turn(3, 0.25, value=4.0, reason="It found the key.")
    assert trajectory.turn_reasons == {"s2": "It found the key."}
    assert trajectory.turn_rewards == {"s1": 0.5, "s2": 0.5} and trajectory.turn_states == {"s1": "hall"}
    assert trajectory.reward == 2.0 and trajectory.turn_values == {"s2": 4.0}
    (group,) = train_groups([art.TrajectoryGroup([trajectory])])
    assert group.trajectories[0].turn_rewards == trajectory.turn_rewards
    assert group.trajectories[0].turn_states == {"s1": "hall"} and group.trajectories[0].reward == 2.0
    assert group.trajectories[0].notes.turn_reasons == {"s2": "It found the key."}
    unscored = art.Trajectory(messages_and_choices=[choice("s3")], reward=art.Unscored("judge down"))
    unscored.reward_turn(0, 0.5)
    assert unscored.reward == art.Unscored("judge down")
    again = art.Trajectory.model_validate_json(trajectory.model_dump_json())
    assert again.turn_rewards == trajectory.turn_rewards
    assert again.turn_reasons == trajectory.turn_reasons


@pytest.mark.parametrize("turn", [0, 7, -9, "s1", None, choice(None)])
def test_a_turn_that_was_not_sampled_has_no_reward(turn: Any) -> None:
    trajectory = art.Trajectory(messages_and_choices=[ASK, choice("s1")])
    with pytest.raises(ConfigurationError, match="no turn that ART's server sampled"):
        trajectory.reward_turn(turn, 1.0)


@pytest.mark.parametrize("reward", [math.nan, math.inf, 10**400, Decimal("-inf"), "good", None])
def test_a_reward_of_a_turn_is_a_finite_number(reward: Any) -> None:
    trajectory = art.Trajectory(messages_and_choices=[ASK, choice("s1")])
    with pytest.raises(ConfigurationError):
        trajectory.reward_turn(1, reward)
    assert trajectory.turn_rewards == {}


@pytest.mark.parametrize("state", [3, 2.5, ("hall", 1), ["hall"]])
def test_a_state_is_known_by_its_text(state: Any) -> None:
    trajectory = art.Trajectory(messages_and_choices=[ASK, choice("s1")])
    trajectory.reward_turn(1, 0.5, state=state)
    (group,) = train_groups([art.TrajectoryGroup([trajectory])])
    assert group.trajectories[0].turn_states == {"s1": str(state)}


def test_a_turn_whose_rewards_overflow_is_refused_where_it_is_made() -> None:
    trajectory = art.Trajectory(messages_and_choices=[ASK, choice("s1")])
    trajectory.reward_turn(1, 1e308)
    with pytest.raises(ConfigurationError, match="inf is no finite number"):
        trajectory.reward_turn(1, 1e308, value=1.0)
    assert trajectory.turn_rewards == {"s1": 1e308} and trajectory.turn_values == {}
    assert trajectory.reward == 1e308


def rewards_are(value: Any) -> Callable[[art.Trajectory], object]:
    return lambda one: one.turn_rewards.update(s1=value)


def of_two_turns(value: float) -> Callable[[art.Trajectory], object]:
    return lambda one: (one.reward_turn(1, value), one.reward_turn(2, value))


WAYS_IN: dict[str, tuple[Callable[[art.Trajectory], object], str]] = {
    "nan": (rewards_are(math.nan), "the reward of turn 's1' is nan"),
    "minus infinity": (rewards_are(-math.inf), "the reward of turn 's1' is -inf"),
    "a whole number of 400 digits": (rewards_are(10**400), "the reward of turn 's1' is inf"),
    "a decimal": (rewards_are(Decimal("nan")), "the reward of turn 's1' is nan"),
    "numpy": (rewards_are(np.float32("inf")), "the reward of turn 's1' is inf"),
    "another dict": (lambda one: setattr(one, "turn_rewards", {"s1": math.nan}), "turn 's1' is nan"),
    "a value": (lambda one: one.turn_values.update(s2=math.inf), "the value of turn 's2' is inf"),
    "a sum": (of_two_turns(1e308), "the reward is inf"),
    "a sum that the reward does not show": (
        lambda one: one.turn_rewards.update(s1=1e308, s2=1e308),
        "add up to more than 1e[+]37",
    ),
    "a sum of float32": (of_two_turns(1e37), "add up to more than 1e[+]37"),
    "values": (lambda one: one.turn_values.update(s1=1e308, s2=-1e308), "add up to more than"),
    "the reward": (lambda one: setattr(one, "reward", -(10**400)), "the reward is -inf"),
    "a large reward": (lambda one: setattr(one, "reward", 1e38), "add up to more than 1e[+]37"),
}


@pytest.mark.parametrize("way", WAYS_IN)
async def test_a_number_of_a_turn_that_is_none_costs_its_rollout_and_not_the_batch(way: str) -> None:
    write, reason = WAYS_IN[way]

    async def play(name: str) -> art.Trajectory:
        turns = [ASK, choice(f"{name}1"), choice(f"{name}2")]
        trajectory = art.Trajectory(messages_and_choices=turns, reward=1.0, rollout_id=name)
        if name == "s":
            write(trajectory)
        else:
            trajectory.reward_turn(1, 0.5)
        return trajectory

    groups = await art.gather_trajectory_groups([art.TrajectoryGroup(play(name) for name in "sabc")])
    assert known_reward(groups[0].trajectories[0]) is None
    (group,) = train_groups(groups)
    arrived = TrainGroup.model_validate_json(group.model_dump_json())
    odd, *others = arrived.trajectories
    assert odd.reward is None and odd.unscored_reason is not None
    assert re.search(reason, odd.unscored_reason), odd.unscored_reason
    assert [one.reward for one in others] == [1.5] * 3 and [len(one.turn_rewards) for one in others] == [
        1
    ] * 3
    unscored = groups[0].trajectories[0].model_copy(update={"reward": art.Unscored("judge down")})
    (group,) = train_groups([art.TrajectoryGroup([unscored])])
    assert group.trajectories[0].unscored_reason == "judge down"


async def test_a_reward_of_a_turn_that_is_no_number_fails_its_rollout() -> None:
    async def play(reward: Any) -> art.Trajectory:
        trajectory = art.Trajectory(messages_and_choices=[ASK, choice("s1")])
        trajectory.turn_rewards["s1"] = reward
        return trajectory

    rollouts = [play(1.0), play("good"), play(None)]
    (group,) = await art.gather_trajectory_groups([art.TrajectoryGroup(rollouts)], max_exceptions=2)
    assert len(group.trajectories) == 1
    assert all("the reward of turn 's1'" in one.message for one in group.exceptions)
    with pytest.raises(ConfigurationError, match="reward of turn 's1' is 'good', a str, not a number"):
        train_groups([art.TrajectoryGroup([await play("good")])])


@pytest.mark.parametrize("kind", OF_TURNS)
def test_the_largest_numbers_of_turns_can_be_trained(kind: Any) -> None:
    """Two rollouts at opposite ends of what is allowed, spread over reward, turns and values."""
    part = LARGEST_REWARDS / 3
    for signs in itertools.product([1, -1], repeat=3):
        whole, turn, value = (sign * part for sign in signs)
        first, second = rollout("a", whole, {"a1": turn}, 9), rollout("b", -whole, {"b1": -turn}, 10)
        rows = [
            dataclasses.replace(first, turn_values={"a1": value}),
            dataclasses.replace(second, turn_values={"b1": -value}),
        ]
        batch = build_batch([GroupRow(rollouts=rows)], algorithm=resolve(kind))
        assert np.isfinite(batch.entries.advantage_E).all() and len(batch.entries.advantage_E)


def test_a_turn_of_another_rollout_is_refused_before_anything_is_sent() -> None:
    trajectory = art.Trajectory(messages_and_choices=[ASK, choice("s1")], turn_rewards={"s9": 1.0})
    with pytest.raises(ConfigurationError, match=r"names 's9', which is no turn of it"):
        train_groups([art.TrajectoryGroup([trajectory])])


def rollout(name: str, reward: float, turns: dict[str, float], last: int) -> RolloutRow:
    samples = [
        SampleRow(
            sample_id=f"{name}1", prompt_ids=[5], completion_ids=[6, 7], completion_logprobs=[-1.0, -1.0]
        ),
        SampleRow(
            sample_id=f"{name}2", prompt_ids=[5, 6, 7, 8], completion_ids=[last], completion_logprobs=[-1.0]
        ),
    ]
    return RolloutRow(rollout=name, reward=reward, samples=samples, turn_rewards=turns)


def test_each_token_has_the_advantage_of_its_turn() -> None:
    group = GroupRow(rollouts=[rollout("a", 1.5, {"a1": 0.5}, 9), rollout("b", 0.0, {}, 10)])
    batch = build_batch([group], algorithm=resolve("turn_rloo"))
    assert batch.entries.advantage_E.tolist() == [1.5, 1.5, 1.0, -1.5, -1.5, -1.0]
    assert [fate.fate for fate in batch.fates[0]] == ["trained", "trained"]
    tree = build_batch([group], algorithm=resolve("turn_tree"))
    assert np.allclose(tree.entries.advantage_E, [0, 0, 0.75, 0, 0, -0.75])


def test_the_fate_of_a_rollout_has_what_its_turns_earned_and_their_advantages() -> None:
    group = GroupRow(
        rollouts=[
            rollout("a", 1.5, {"a1": 0.5}, 9),
            rollout("b", 0.25, {"b2": 0.5}, 10),
            RolloutRow(rollout="c", reward=None, samples=[]),
        ]
    )
    batch = build_batch([group], algorithm=resolve("turn_rloo", advantage={"gamma": 0.5}))
    a, b, c = batch.fates[0]
    assert a.turn_returns == {"a1": 1.0, "a2": 1.0} and b.turn_returns == {"b1": 0.125, "b2": 0.25}
    assert a.turn_advantages == {"a1": 0.875, "a2": 0.75} and b.turn_advantages == {"b1": -0.875, "b2": -0.75}
    assert c.turn_returns == c.turn_advantages == {}
    assert batch.metrics["reward/turn_return_mean"] == pytest.approx((1.0 + 1.0 + 0.125 + 0.25) / 4)
    plain = build_batch(
        [GroupRow(rollouts=[rollout("a", 1.0, {}, 9), rollout("b", 0.0, {}, 10)])], algorithm=resolve("grpo")
    )
    assert plain.fates[0][0].turn_returns == plain.fates[0][0].turn_advantages == {}
    assert "reward/turn_return_mean" not in plain.metrics


def test_an_algorithm_without_turns_refuses_their_rewards_by_name() -> None:
    group = GroupRow(rollouts=[rollout("a", 1.0, {"a1": 0.5}, 9), rollout("b", 0.0, {}, 10)])
    with pytest.raises(ConfigurationError, match=r"'a' has rewards of turns.*'group' ignore.*turn_rloo"):
        build_batch([group], algorithm=resolve("grpo"))
    with pytest.raises(ConfigurationError, match="not taken off the rewards of turns"):
        resolve("turn_rloo", kl={"coefficient": 0.1, "place": "reward", "estimator": "k1"})
    assert resolve("turn_rloo", advantage={"gamma": 0.9}).advantage.gamma == 0.9


def test_without_rewards_of_turns_it_is_the_leave_one_out_of_rollouts() -> None:
    group = GroupRow(rollouts=[rollout("a", 1.0, {}, 9), rollout("b", 0.25, {}, 10)])
    turns = build_batch([group], algorithm=resolve("turn_rloo")).entries.advantage_E
    whole = build_batch([group], algorithm=resolve("rloo")).entries.advantage_E
    assert turns.tolist() == whole.tolist()

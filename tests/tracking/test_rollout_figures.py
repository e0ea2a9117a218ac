"""Figures of rollouts against independent computations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_groups import reply

import art
from art.tracking.averages import summarize
from art.tracking.rollout_figures import (
    empty_prompt_rate,
    equal_groups,
    percentile,
    reply_figures,
    reward_length_correlation,
    rollout_figures,
    same_input_rate,
    standard_error,
    turn_figures,
)

REWARDS = st.lists(st.lists(st.sampled_from([0.0, 0.25, 1.0, -3.0]), max_size=5), max_size=6)


def said(reward: float | art.Unscored, *lengths: int, **extra: Any) -> art.Trajectory:
    turns = [reply(completion_tokens=length, **extra) for length in lengths]
    return art.Trajectory(reward=reward, messages_and_choices=[{"role": "user", "content": "?"}, *turns])


@given(REWARDS)
def test_the_standard_error_is_that_of_a_regression_on_a_constant_with_clusters(
    rewards: list[list[float]],
) -> None:
    groups = [np.array(group) for group in rewards if group]
    if len(groups) < 2:
        assert standard_error(rewards) is None
        return
    y = np.concatenate(groups)
    x = np.ones((len(y), 1))
    bread = np.linalg.inv(x.T @ x)
    residual = y - x @ (bread @ x.T @ y)
    ends = np.cumsum([len(group) for group in groups])[:-1]
    scores = [
        np.outer(s := xg.T @ eg, s)
        for xg, eg in zip(np.split(x, ends), np.split(residual, ends), strict=True)
    ]
    sandwich = bread @ sum(scores) @ bread * len(groups) / (len(groups) - 1)
    assert standard_error(rewards) == pytest.approx(float(np.sqrt(max(0.0, sandwich[0, 0]))), abs=1e-9)


def test_rollouts_that_say_the_same_count_once() -> None:
    """Eight equal rollouts of a scenario tell no more than one: the naive error is too small by sqrt(8)."""
    groups = [[1.0] * 8, [0.0] * 8, [1.0] * 8, [0.0] * 8]
    naive = float(np.std(np.concatenate(groups), ddof=1) / np.sqrt(32))
    assert standard_error(groups) == pytest.approx(standard_error([[1.0], [0.0], [1.0], [0.0]]))
    assert (standard_error(groups) or 0.0) > 3 * naive


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.sampled_from([50, 90, 99]))
def test_percentiles_are_numpys(values: list[float], percent: int) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(float(np.percentile(values, percent)))


@given(
    st.lists(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 9)), max_size=4), max_size=5)
)
def test_the_correlation_is_that_of_what_is_left_without_the_groups_means(
    drawn: list[list[tuple[float, int]]],
) -> None:
    groups = [art.TrajectoryGroup([said(reward, length) for reward, length in group]) for group in drawn]
    rest = [np.array(group, float) - np.mean(group, axis=0) for group in drawn if group]
    found = reward_length_correlation(groups)
    pooled = np.concatenate(rest) if rest else np.zeros((0, 2))
    if len(pooled) == 0 or min(np.abs(pooled).max(axis=0)) < 1e-9:
        assert found is None
    else:
        assert found == pytest.approx(float(np.corrcoef(pooled.T)[0, 1]), abs=1e-9)


def test_replies_that_were_cut_and_calls_that_cannot_be_read() -> None:
    trajectories = [
        said(1.0, 4, 6),
        said(0.0, 8, finish_reason="length"),
        said(art.Unscored("x"), 2, malformed_calls=2),
        art.Trajectory(reward=0.0, messages_and_choices=[{"role": "user", "content": "?"}]),
    ]
    assert reply_figures(trajectories) == {
        "completion_tokens_p50": 5.0,
        "completion_tokens_p90": pytest.approx(7.4),
        "completion_tokens_p99": pytest.approx(7.94),
        "completion_tokens_max": 8.0,
        "completion_tokens_mean": 5.0,
        "truncated_rate": pytest.approx(1 / 3),
        "malformed_call_rate": 0.25,
        "noise_rate": 0.0,
        "same_reply_rate": 1.0,
    }


@pytest.mark.parametrize(
    ("texts", "noise", "same"),
    [
        (["red", "blue", "red", "a < b | c > d"], 0.0, 0.5),
        (["noB1\n<|im_start|><|im_start|>assistant", "red"], 0.5, 0.5),
        (["\ufffd", "</s>", "<end_of_turn>", "<think>why</think>"], 0.75, 0.25),
    ],
)
def test_noise_and_equal_replies_are_counted(texts: list[str], noise: float, same: float) -> None:
    found = reply_figures([said(1.0, 1, content=text) for text in texts])
    assert (found["noise_rate"], found["same_reply_rate"]) == (noise, same)


def test_a_call_is_part_of_what_was_said() -> None:
    def call(name: str, number: int) -> dict[str, Any]:
        return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}

    calls = [[call("look", 1)], [call("look", 2)], [call("buy", 3)]]
    found = reply_figures([said(1.0, 1, message={"content": None, "tool_calls": one}) for one in calls])
    assert found["same_reply_rate"] == pytest.approx(2 / 3)


def test_what_the_data_does_not_determine_is_left_out() -> None:
    assert rollout_figures([]) == {}
    assert rollout_figures([art.TrajectoryGroup([art.Trajectory(reward=1.0)])]) == {"reward_max": 1.0}
    unscored = art.TrajectoryGroup([art.Trajectory(reward=art.Unscored("x")) for _ in range(3)])
    assert rollout_figures([unscored, unscored]) == {}


@pytest.mark.parametrize(
    ("rewards", "good", "bad"),
    [
        ([[1.0, 1.0], [1.0, 1.0]], 1.0, 0.0),
        ([[0.0, 0.0], [0.0, 0.0]], 0.0, 1.0),
        ([[0.5, 0.5], [0.0, 1.0]], 0.0, 0.0),
        ([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [1.0]], 1 / 3, 1 / 3),
        ([[1.0]], None, None),
    ],
)
def test_groups_of_one_reward(rewards: list[list[float]], good: float | None, bad: float | None) -> None:
    assert equal_groups(rewards) == {"all_good_groups": good, "all_bad_groups": bad}


def test_a_users_own_metric_of_the_same_name_stays() -> None:
    group = art.TrajectoryGroup(
        [art.Trajectory(reward=float(n), metrics={"truncated_rate": 0.5}) for n in range(2)]
    )
    averages = summarize([group, group], "val").averages
    assert averages["truncated_rate"] == 0.5 and averages["reward_sem"] == 0.0


def shown(question: Any, answer: str = "?", scenario: str | None = None) -> art.TrajectoryGroup:
    """A group of one rollout: a question, a reply, what a tool says to it, a reply."""
    turns: list[Any] = [{"role": "user", "content": question}, reply(), {"role": "tool", "content": answer}]
    facts: dict[str, Any] = {} if scenario is None else {"scenario_id": scenario}
    return art.TrajectoryGroup([art.Trajectory(messages_and_choices=[*turns, reply()])], metadata=facts)


def test_groups_that_show_the_model_the_same_are_counted_by_all_that_is_not_its_own() -> None:
    assert same_input_rate([shown("a"), shown("a"), shown("a"), shown("b")]) == 0.75
    assert same_input_rate([shown("a", f"{place}") for place in range(4)]) == 0.25
    own: list[Any] = [{"role": "user", "content": "a"}]
    said = [
        art.TrajectoryGroup([art.Trajectory(messages_and_choices=[*own, reply(content=c)])]) for c in "abcd"
    ]
    assert same_input_rate(said) == 1.0, "replies differ, what they reply to does not"
    assert same_input_rate([shown("a")] * 3) is None
    assert same_input_rate([shown("a", scenario="one")] * 8) is None, "it is meant to be one"
    assert same_input_rate([shown("a", scenario=f"s-{place}") for place in range(8)]) == 1.0


@pytest.mark.parametrize(("content", "empty"), [("a", 0.0), ("", 1.0), (" \n", 1.0), (None, 1.0), ([], 1.0)])
def test_a_prompt_without_a_text_is_counted(content: Any, empty: float) -> None:
    assert empty_prompt_rate(shown(content).trajectories) == empty
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    assert empty_prompt_rate(shown(picture).trajectories) == 0.0
    assert empty_prompt_rate([art.Trajectory(messages_and_choices=[reply()])]) is None


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([None, 0.0, 0.5, -2.0]), min_size=1, max_size=4),
            st.sampled_from([1.0, None]),
        ),
        max_size=5,
    )
)
def test_figures_of_turns_are_those_of_the_rollouts_that_rewarded_some(
    rollouts: list[tuple[list[float | None], float | None]],
) -> None:
    """A None among the turns of a rollout is a turn without a reward; as its reward, a missing score."""
    trajectories = [
        art.Trajectory(
            reward=art.Unscored("late") if reward is None else reward,
            messages_and_choices=[reply(sample_id=f"s{k}") for k in range(len(turns))],
            turn_rewards={f"s{k}": one for k, one in enumerate(turns) if one is not None},
        )
        for turns, reward in rollouts
    ]
    scored = [turns for turns, reward in rollouts if reward is not None]
    rewarded = [turns for turns in scored if any(one is not None for one in turns)]
    found = turn_figures(trajectories)
    if not rewarded:
        assert found == {}
        return
    assert found["turn_rewarded_rate"] == len(rewarded) / len(scored)
    every = np.array([one or 0.0 for turns in rewarded for one in turns])
    assert found["turn_reward_mean"] == pytest.approx(every.mean())
    zero = [not any(turns) for turns in rewarded]
    assert found["turn_reward_zero_rate"] == pytest.approx(np.mean(zero))
    sizes = [np.abs([one or 0.0 for one in turns]) for turns in rewarded if len(turns) > 1 and any(turns)]
    tops = [size.max() / size.sum() for size in sizes]
    assert found["turn_reward_top_share"] == (pytest.approx(np.mean(tops)) if tops else None)
    figures = rollout_figures([art.TrajectoryGroup(trajectories)])
    assert figures["turn_rewarded_rate"] == found["turn_rewarded_rate"]

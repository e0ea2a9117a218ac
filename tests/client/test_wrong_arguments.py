"""Arguments of the wrong kind: the error has the value and what to write, and nothing was sent."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from wire_double import Double

import art
from art.client.requests.train_request import train_groups
from art.errors import ConfigurationError

COMPLETION = ChatCompletion.model_validate(
    {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
    }
)
QUESTION: Any = {"role": "user", "content": "q"}


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (COMPLETION, "a ChatCompletion, which is no message: append `completion.choices[0]`"),
        ("hello", "'hello', a str, which is no message: append a dict"),
        (None, "None, which is no message: append a dict"),
        (COMPLETION.choices, "a list, which is no message: append a dict"),
    ],
)
def test_a_turn_that_is_no_message_is_refused(item: Any, problem: str) -> None:
    trajectory = art.Trajectory(messages_and_choices=[QUESTION], reward=1.0)
    trajectory.messages_and_choices.append(item)
    for read in (trajectory.messages, lambda: train_groups([art.TrajectoryGroup([trajectory])])):
        with pytest.raises(TypeError) as caught:
            read()
        assert problem in str(caught.value)


def test_messages_as_objects_of_openai_are_context() -> None:
    trajectory = art.Trajectory(messages_and_choices=[QUESTION, COMPLETION.choices[0].message])
    assert trajectory.messages()[1] == {"role": "assistant", "content": "hi"}
    assert train_groups([art.TrajectoryGroup([trajectory])])[0].trajectories[0].samples == []


def test_one_group_that_is_not_in_a_list_is_refused_with_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"given in a list, \[group\]"):
        train_groups(art.TrajectoryGroup([art.Trajectory(reward=1.0)]))


async def test_a_config_of_another_kind_is_refused(model, backend, double: Double) -> None:
    await model.register(backend)
    groups: Any = [art.TrajectoryGroup([art.Trajectory(reward=1.0)])]
    for config, problem in (
        ({"learning_rate": 1e-4}, "config is a dict: write config=art.TrainConfig(learning_rate=0.0001)"),
        (art.TrainSFTConfig(), "config is a TrainSFTConfig: write config=art.TrainConfig(...)"),
        (1e-4, "config is 0.0001, a float: write config=art.TrainConfig(...)"),
    ):
        with pytest.raises(TypeError) as caught:
            await model.train(groups, config=config)
        assert str(caught.value) == problem
    with pytest.raises(TypeError) as caught:
        await model.train_sft([{"prompt": "a", "completion": "b"}], {"learning_rate": 1e-4})
    assert str(caught.value) == "config is a dict: write config=art.TrainSFTConfig(learning_rate=0.0001)"
    assert double.jobs == {}


async def test_a_class_is_no_backend(model) -> None:
    with pytest.raises(TypeError, match=r"the class LocalBackend: make one, `LocalBackend\(\)`"):
        await model.register(art.LocalBackend)


@pytest.mark.extension
async def test_what_is_no_backend_is_refused(model) -> None:
    for other in ("local", None, 3):
        with pytest.raises(ConfigurationError, match=r"which is none: give art.LocalBackend\(\)"):
            await model.register(other)

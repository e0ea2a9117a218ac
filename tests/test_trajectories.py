from __future__ import annotations

import copy
import warnings

import openai
import pydantic
import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.trajectories import PydanticException, get_messages, is_choice


def choice(content: str | None = "hi", **extra) -> Choice:
    message = {"role": "assistant", "content": content, **extra.pop("message", {})}
    return Choice.construct(index=0, finish_reason="stop", message=message, **extra)


def test_defaults_are_not_shared():
    one, other = art.Trajectory(), art.Trajectory()
    one.messages_and_choices.append({"role": "user", "content": "x"})
    one.metrics["a"] = 1
    assert other.messages_and_choices == [] and other.metrics == {} and other.reward == 0.0


def test_messages_keep_dicts_by_reference_and_choices_with_their_extra_fields():
    message, said = {"role": "user", "content": "x", "odd": 1}, choice(sample_id="s1", step=4)
    trajectory = art.Trajectory(messages_and_choices=[message, said])
    assert trajectory.messages_and_choices[0] is message and trajectory.messages_and_choices[1] is said
    assert said.model_extra == {"sample_id": "s1", "step": 4}


def test_get_messages_of_choices():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = choice(None, message={"tool_calls": [call], "reasoning_content": "hm"})
    assert get_messages([{"role": "user", "content": None}, said, said.model_dump()]) == [
        {"role": "user", "content": ""},
        *[{"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"}] * 2,
    ]


def test_round_trip_through_json_restores_choices_and_unscored():
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "x"}, choice(sample_id="s1")],
        additional_histories=[art.History(messages_and_choices=[choice(sample_id="s2")])],
        reward=art.Unscored("judge is down"),
    )
    again = art.Trajectory.model_validate_json(trajectory.model_dump_json())
    assert again.reward == art.Unscored("judge is down")
    assert again.messages_and_choices[1].model_extra == {"sample_id": "s1"}
    assert isinstance(again.additional_histories[0].messages_and_choices[0], Choice)


def test_an_unknown_field_is_an_error_with_the_closest_name():
    with pytest.raises(pydantic.ValidationError, match="no such field, did you mean 'reward'"):
        art.Trajectory(rewards=1.0)
    with pytest.raises(pydantic.ValidationError, match="no such field; to keep it"):
        art.Trajectory(scenario={"id": 1})


def test_unknown_fields_of_a_subclass_are_ignored_with_one_warning_a_name():
    class Own(art.Trajectory):
        """A class of its own: warnings are given once for each class and name."""

    with pytest.warns(UserWarning) as caught:
        for _ in range(3):
            assert Own(scenario={"id": 1}, rewards=1.0).reward == 0.0
    texts = sorted(str(warning.message) for warning in caught)
    assert len(texts) == 2
    assert "Own(rewards=...) is ignored: no such field, did you mean 'reward'?" in texts[0]
    assert "Own(scenario=...) is ignored: no such field; to keep it" in texts[1]
    assert all(warning.filename == __file__ for warning in caught)


def test_subclasses_decide_what_happens_to_unknown_fields():
    class Open(art.Trajectory, extra="allow"):
        pass

    class Strict(art.Trajectory, extra="forbid"):
        pass

    class Named(art.Trajectory):
        model_config = pydantic.ConfigDict(populate_by_name=True)
        answer: str = pydantic.Field(default="", alias="finalAnswer")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Open(rewards=1.0).rewards == 1.0
        assert Named(finalAnswer="42").answer == Named(answer="42").answer == "42"
        with pytest.raises(pydantic.ValidationError, match="rewards"):
            Strict(rewards=1.0)
    group = art.TrajectoryGroup([Open(rewards=1.0)])
    assert group.trajectories[0].rewards == 1.0 and group.model_dump()["trajectories"][0]["rewards"] == 1.0


def test_message_objects_are_context():
    message = choice("hi").message
    said = openai.types.chat.ChatCompletionMessage(role="assistant", content=None)
    trajectory = art.Trajectory(messages_and_choices=[message, said])
    assert [is_choice(item) for item in trajectory.messages_and_choices] == [False, False]
    assert trajectory.messages() == [
        {"role": "assistant", "content": "hi"},
        {"role": "assistant", "content": ""},
    ]


def test_subclass_fields_survive_in_a_group():
    class Answered(art.Trajectory):
        answer: str = ""

    group = art.TrajectoryGroup([Answered(answer="42")])
    assert group.trajectories[0].answer == "42"
    assert group.model_dump()["trajectories"][0]["answer"] == "42"


def test_log_finish_and_string():
    trajectory = art.Trajectory(reward=1.0)
    trajectory.log("line")
    assert trajectory.finish() is trajectory
    assert trajectory.logs == ["line"] and trajectory.metrics["duration"] >= 0
    assert str(trajectory).startswith("Trajectory(reward=1.0, metrics={'duration'")


async def test_track_duration_adds_up_also_when_it_raises():
    trajectory = art.Trajectory()
    for _ in range(2):
        with pytest.raises(KeyError):
            async with trajectory.track_duration("llm"):
                raise KeyError
    assert trajectory.metrics["llm_duration"] > 0


def test_for_logging_marks_what_is_trained():
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "assistant", "content": "context"}, choice()],
        reward=art.Unscored("why"),
    )
    logged = trajectory.for_logging()
    assert [message["trainable"] for message in logged["messages"]] == [False, True]
    assert (logged["reward"], logged["unscored_reason"]) == (None, "why")


def test_group_of_results():
    one, two = art.Trajectory(reward=1), art.Trajectory(reward=0)
    items = [one, ValueError("x"), two]
    for given in (items, (item for item in items)):
        group = art.TrajectoryGroup(given)
        assert group.trajectories[0] is one and list(group) == [one, two] and len(group) == 2
        assert [(e.type, e.message) for e in group.exceptions] == [("<class 'ValueError'>", "x")]
    assert len(art.TrajectoryGroup([])) == 0


def test_what_is_no_trajectory_counts_as_failed():
    group = art.TrajectoryGroup(["text", None])
    assert len(group) == 0 and len(group.exceptions) == 2
    assert group.exceptions[0].message == "a rollout returned 'text', a str, not a Trajectory"


def test_group_fields():
    failure = PydanticException(type="t", message="m", traceback="")
    group = art.TrajectoryGroup(
        [], exceptions=[failure], metadata={"scenario_id": "s1"}, metrics={"judge": 0.5}, logs=["l"]
    )
    assert (group.exceptions, group.metadata, group.metrics, group.logs) == (
        [failure],
        {"scenario_id": "s1"},
        {"judge": 0.5},
        ["l"],
    )
    again = art.TrajectoryGroup.model_validate_json(group.model_dump_json())
    assert again == group


def test_copies_are_independent():
    group = art.TrajectoryGroup([art.Trajectory(reward=1), ValueError("x")])
    shallow, deep = copy.copy(group), copy.deepcopy(group)
    group.trajectories.append(art.Trajectory())
    group.trajectories[0].reward = 9
    assert len(shallow) == len(deep) == 1
    assert (shallow.trajectories[0].reward, deep.trajectories[0].reward) == (9, 1)
    assert isinstance(deep, art.TrajectoryGroup) and deep.exceptions == group.exceptions

"""Whatever a rollout asks, each choice is kept once, after the very messages that it answered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice

from art.recording.recorder import Recorder, tools_key
from art.trajectories import Trajectory, get_messages
from art.wire.message_identity import message_key

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def reply(samples: list[str], texts: list[str]) -> ChatCompletion:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
            "sample_id": name,
        }
        for index, (name, text) in enumerate(zip(samples, texts, strict=True))
    ]
    return ChatCompletion.model_validate(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    )


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_each_choice_is_kept_once_after_what_it_answered(data: st.DataObject) -> None:
    recorder = Recorder(Trajectory())
    asked: dict[str, tuple[list[dict[str, Any]], Any]] = {}
    conversations: list[list[dict[str, Any]]] = [[]]
    for turn in range(data.draw(st.integers(1, 8))):
        before = data.draw(st.sampled_from(conversations))
        kept = before[: data.draw(st.integers(0, len(before)))] if data.draw(st.booleans()) else before
        messages = [*kept, {"role": "user", "content": data.draw(st.sampled_from(["a", "b"]))}]
        tools = data.draw(st.sampled_from([None, None, TOOLS]))
        texts = data.draw(st.lists(st.sampled_from(["x", " x", "y"]), min_size=1, max_size=3))
        names = [f"s{turn}.{number}" for number in range(len(texts))]
        recorder.on_completion({"messages": messages, "tools": tools}, reply(names, texts))
        for name, text in zip(names, texts, strict=True):
            asked[name] = (messages, tools)
            conversations.append([*messages, {"role": "assistant", "content": text}])
    found = []
    for history in [recorder.trajectory, *recorder.trajectory.additional_histories]:
        for place, item in enumerate(history.messages_and_choices):
            if isinstance(item, Choice):
                found.append(item.model_extra["sample_id"])
                messages, tools = asked[found[-1]]
                known = get_messages(history.messages_and_choices[:place])
                assert [message_key(message) for message in known] == [message_key(m) for m in messages]
                assert tools_key(history.tools) == tools_key(tools)
    assert sorted(found) == sorted(asked)


@given(st.text(max_size=5), st.text(max_size=5))
def test_other_text_is_another_message(one: str, other: str) -> None:
    spelled = [{"role": "user", "content": text} for text in (one, other)]
    in_parts = {"role": "user", "content": [{"type": "text", "text": text} for text in (one[:2], one[2:])]}
    assert (message_key(spelled[0]) == message_key(spelled[1])) == (one == other)
    assert message_key(in_parts) == message_key(spelled[0])
    assert message_key(spelled[0] | {"role": "system"}) != message_key(spelled[0])


def test_pictures_and_calls_tell_messages_apart() -> None:
    def picture(url: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}

    def call(name: str, arguments: Any) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}

    assert message_key(picture("a")) != message_key(picture("b"))
    assert message_key(call("f", '{"a": 1, "b": 2}')) == message_key(call("f", '{"b":2,"a":1}'))
    assert message_key(call("f", '{"a": 1}')) != message_key(call("g", '{"a": 1}'))
    assert message_key(call("f", "no json")) != message_key(call("f", "nor this"))
    assert message_key(call("f", "{}")) != message_key({"role": "assistant", "content": "f {}"})


def test_calls_that_are_sent_back_name_their_turn() -> None:
    """Two conversations of the same words: the ids of the calls say which one goes on."""
    recorder = Recorder(Trajectory())
    ask = [{"role": "user", "content": "a"}]

    def called(name: str) -> dict[str, Any]:
        call = {"id": f"call_{name}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    for name in ("s0", "s1"):
        completion = reply([name], [""])
        completion.choices[0].message = Choice.model_validate(
            {"index": 0, "finish_reason": "tool_calls", "message": called(name)}
        ).message
        recorder.on_completion({"messages": ask, "tools": TOOLS}, completion)
    result = {"role": "tool", "tool_call_id": "call_s1", "content": "b"}
    recorder.on_completion({"messages": [*ask, called("s1"), result], "tools": TOOLS}, reply(["s2"], ["x"]))
    told = [
        [item.model_extra["sample_id"] for item in history.messages_and_choices if isinstance(item, Choice)]
        for history in [recorder.trajectory, *recorder.trajectory.additional_histories]
    ]
    assert told == [["s0"], ["s1", "s2"]]

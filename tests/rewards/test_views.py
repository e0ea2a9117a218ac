"""What a judge is shown of a trajectory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

import art
from art.rewards.judge_view import digest, shortened, view_of, views_of


def choice(text: str, **message: Any) -> Choice:
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text, **message},
            "logprobs": {
                "content": [{"token": "secret", "logprob": -0.1, "bytes": None, "top_logprobs": []}]
            },
            "sample_id": "s-1",
        }
    )


def shown(messages: list[Any], **options: Any) -> list[dict[str, Any]]:
    return list(view_of([messages], **options).conversations[0])


def test_a_view_holds_what_was_said_and_nothing_that_only_we_need() -> None:
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "two plus two?"}, choice("four")],
        tools=[{"type": "function", "function": {"name": "add", "parameters": {}}}],
        reward=0.123,
        metrics={"secret": 1},
        metadata={"answer": "secret"},
        logs=["secret"],
    )

    [view] = views_of(art.TrajectoryGroup([trajectory]))

    assert view.conversations == (
        ({"role": "user", "content": "two plus two?"}, {"role": "assistant", "content": "four"}),
    )
    assert view.tools[0]["function"]["name"] == "add"
    text = json.dumps([view.conversations, view.tools])
    assert not any(word in text for word in ("secret", "0.123", "s-1", "logprob"))


def test_further_histories_are_conversations_too() -> None:
    helper = art.History(messages_and_choices=[{"role": "user", "content": "sub-task"}, choice("done")])
    trajectory = art.Trajectory(messages_and_choices=[choice("four")], additional_histories=[helper])

    [view] = views_of(art.TrajectoryGroup([trajectory]))

    assert [[m["content"] for m in messages] for messages in view.conversations] == [
        ["four"],
        ["sub-task", "done"],
    ]
    assert view.length == len("four") + len("done")


def test_the_length_is_what_the_agent_wrote_its_calls_included() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "look_up", "arguments": '{"a":1}'}}
    messages = [
        {"role": "system", "content": "long, long instructions"},
        {"role": "assistant", "content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "a long answer"},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]
    assert view_of([messages]).length == len("hm") + len('{"a":1}') + len("done")


def test_ids_of_calls_are_numbered_so_that_equal_turns_are_equal() -> None:
    def asked(one: str, two: str) -> list[dict[str, Any]]:
        calls = [
            {"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in (one, two)
        ]
        return [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": two, "content": "2"},
            {"role": "tool", "tool_call_id": one, "content": "1"},
        ]

    first = shown(asked("chatcmpl-17", "chatcmpl-99"))
    assert first == shown(asked("b", "a"))
    assert [message["tool_call_id"] for message in first[1:]] == ["call_2", "call_1"]


def test_long_tool_outputs_are_digested_and_nothing_else() -> None:
    long = "".join(f"line {i}\n" for i in range(1000))
    messages = [{"role": "assistant", "content": long}, {"role": "tool", "content": long}]

    said, found = shown(messages, digest_chars=300)

    assert said["content"] == long
    assert len(found["content"]) < 400 and "of 8890 characters left out, sha256 " in found["content"]
    assert found["content"].startswith("line 0\n") and found["content"].endswith("line 999\n")
    [again] = shown([{"role": "tool", "content": [{"type": "text", "text": long}]}], digest_chars=300)
    assert again["content"] == [{"type": "text", "text": found["content"]}]


def test_digests_of_equal_texts_are_equal_and_of_others_differ() -> None:
    long, other = "a" * 500, "a" * 250 + "b" + "a" * 249
    assert digest(long, 100) == digest(long, 100) != digest(other, 100)
    assert digest(long, 500) == long


def test_a_view_can_be_shortened_further() -> None:
    view = view_of([[{"role": "tool", "content": "x" * 3000}, {"role": "assistant", "content": "y" * 3000}]])
    less = shortened(view, 200)
    assert len(less.conversations[0][0]["content"]) < 300
    assert less.conversations[0][1] == view.conversations[0][1] and less.length == view.length == 3000


def test_images_sounds_and_files_are_named_not_sent() -> None:
    url = "data:image/png;base64," + "A" * 5000
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f-1"}},
    ]
    [message] = shown([{"role": "user", "content": parts}])

    assert message["content"][0] == parts[0]
    texts = [part["text"] for part in message["content"][1:]]
    assert texts[0].startswith("[image_url, 5022 characters, sha256 ")
    assert texts[1].startswith("[input_audio, 4 characters") and texts[2] == "[file]"
    other = shown([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url + "B"}}]}])
    assert other[0]["content"][0]["text"] != texts[0]


class Found(BaseModel):
    pages: list[int]
    note: str | None = None


class Strange:
    pass


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (b"ab", "[2 bytes, sha256 fb8e20fc]"),
        (Found(pages=[1]), {"pages": [1]}),
        (float("nan"), "nan"),
        ((1, {2: None}), [1, {"2": None}]),
        (Strange(), "[Strange]"),
        ("half a pair \ud800", "half a pair ?"),
        (True, True),
    ],
)
def test_what_is_no_json_becomes_text(value: Any, plain: Any) -> None:
    [message] = shown([{"role": "user", "content": "x", "extra": value}])
    assert message["extra"] == plain
    json.dumps(message).encode()


@pytest.mark.parametrize(
    "odd", [{"content": 1}, {"tool_calls": [1, {"function": None}]}, {"tool_calls": "x"}, {"\ud800": 1}]
)
def test_messages_of_no_known_form_are_shown(odd: dict[str, Any]) -> None:
    [message] = shown([{"role": "assistant", "content": "x", **odd}])
    json.dumps(message, ensure_ascii=False).encode()


def test_data_that_holds_itself_ends() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    [message] = shown([{"role": "user", "content": "x", "extra": loop}])
    assert "[...]" in json.dumps(message)

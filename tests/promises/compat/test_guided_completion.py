"""The request that makes a student repeat its teacher."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from art.guided_completion import freeze_tool_schema, get_guided_completion_params

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Make a move",
        "parameters": {
            "type": "object",
            "properties": {
                "square": {"type": "integer", "minimum": 1, "description": "1 to 9"},
                "comment": {"type": "string"},
            },
            "required": [],
        },
    },
}


def completion(**message: Any) -> ChatCompletion:
    return ChatCompletion.model_validate(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "teacher",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": None, **message},
                }
            ],
        }
    )


def call(name: str = "move", arguments: str = '{"square": 5}') -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_text_is_the_only_choice() -> None:
    assert get_guided_completion_params(completion(content="b2")) == (["b2"], None, None)
    assert get_guided_completion_params(completion(content="b2"), [TOOL]) == (["b2"], "none", [TOOL])  # type: ignore[list-item]


def test_a_call_is_forced_with_frozen_arguments() -> None:
    before = copy.deepcopy(TOOL)
    choice, tool_choice, tools = get_guided_completion_params(completion(tool_calls=[call()]), [TOOL])  # type: ignore[list-item]
    assert choice is None
    assert tool_choice == {"type": "function", "function": {"name": "move"}}
    assert tools is not None
    assert tools[0]["function"]["description"] == "Make a move"
    assert tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"square": {"type": "integer", "description": "1 to 9", "enum": [5]}},
        "required": ["square"],
        "additionalProperties": False,
    }
    assert before == TOOL, "the caller's tool stays as it was"


def test_freezing_a_tool_without_a_schema() -> None:
    bare = {"type": "function", "function": {"name": "done"}}
    parameters = freeze_tool_schema(bare, {"why": "x"})["function"]["parameters"]
    assert parameters["properties"] == {"why": {"enum": ["x"]}} and parameters["required"] == ["why"]
    assert freeze_tool_schema(bare, {})["function"]["parameters"]["properties"] == {}


@pytest.mark.parametrize(
    ("message", "match"),
    [
        ({"tool_calls": [call("fly")]}, r"'fly', which is not among base_tools: 'move'"),
        ({"tool_calls": [call(), call("other")]}, r"'move', 'other' in one turn"),
        ({"content": ""}, "neither text nor a tool call"),
    ],
)
def test_what_cannot_be_forced_is_refused(message: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        get_guided_completion_params(completion(**message), [TOOL])  # type: ignore[list-item]

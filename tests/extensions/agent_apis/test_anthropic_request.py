"""An Anthropic request becomes the chat body that asks the same, or is refused by the name of its field."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from art.errors import RequestError
from art.server.chat.chat_request import read_chat_request
from art.server.chat.messages import sample_hint
from art.server.chat.request_fields import LeftOutParts
from art_extensions.agent_apis.anthropic_request import chat_body

HI = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": [HI]}
_EDIT = "context_management.edits[0]"
TOOL = {"name": "read", "description": "d", "input_schema": {"type": "object", "properties": {"x": {}}}}


def test_the_fields_of_a_plain_request() -> None:
    asked = {
        **BODY,
        "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, text("b")],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop_sequences": ["END"],
        "stream": True,
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "container": None,
        "seed": 3,
    }
    assert chat_body(asked) == {
        "model": "m",
        "max_tokens": 10,
        "messages": [{"role": "system", "content": "a\nb"}, HI],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["END"],
        "stream": True,
        "metadata": {"user_id": "u"},
        "seed": 3,
    }


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_a_turn_with_tools_in_the_bytes_of_the_sdk() -> None:
    """As `anthropic` 2.12 sends back what it was given."""
    call_id = "call_" + "ab" * 12 + "_0"
    messages = [
        HI,
        {
            "role": "assistant",
            "content": [
                {"signature": "", "thinking": "hm", "type": "thinking"},
                {"text": "I look.", "type": "text"},
                {"id": call_id, "input": {"x": 1.0}, "name": "read", "type": "tool_use"},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call_id, "content": [text("4"), text("2")]},
                {"type": "tool_result", "tool_use_id": "other", "content": "no such page", "is_error": True},
                {"type": "tool_result", "tool_use_id": "third", "is_error": False},
                text("go on"),
            ],
        },
    ]
    chat = chat_body({**BODY, "messages": messages, "tools": [TOOL]})
    assert chat["messages"] == [
        HI,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": call_id, "type": "function", "function": {"name": "read", "arguments": '{"x":1.0}'}}
            ],
        },
        {"role": "tool", "tool_call_id": call_id, "content": "4\n2"},
        {"role": "tool", "tool_call_id": "other", "content": "Error: no such page"},
        {"role": "tool", "tool_call_id": "third", "content": ""},
        {"role": "user", "content": "go on"},
    ]
    assert chat["tools"] == [
        {
            "type": "function",
            "function": {"name": "read", "description": "d", "parameters": TOOL["input_schema"]},
        }
    ]
    request = read_chat_request({k: v for k, v in chat.items() if k != "tool_choice"}, max_n=1)
    assert request.sample_hint == sample_hint(chat["messages"]) == "smp_" + "ab" * 12


@pytest.mark.parametrize(
    ("given", "choice", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "read"}, {"type": "function", "function": {"name": "read"}}, None),
        ({"type": "none"}, "none", None),
    ],
)
def test_tool_choices(given: Any, choice: Any, parallel: Any) -> None:
    chat = chat_body({**BODY, "tools": [TOOL], "tool_choice": given})
    assert chat["tool_choice"] == choice
    assert chat.get("parallel_tool_calls") == parallel


def test_thinking_is_told_to_the_chat_format() -> None:
    assert "chat_template_kwargs" not in chat_body({**BODY, "thinking": {"type": "adaptive"}})
    chat = chat_body({**BODY, "thinking": {"type": "disabled"}, "chat_template_kwargs": {"a": 1}})
    assert chat["chat_template_kwargs"] == {"enable_thinking": False, "a": 1}


def test_an_output_format_is_a_response_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    chat = chat_body({**BODY, "output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert chat["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"model": 3}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [HI, {"role": "assistant", "content": "The best answer is"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{**text("x"), "cache_control": 1}]}]},
            "messages[0].content[0].cache_control",
        ),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stream": 1}, "stream"),
        ({"metadata": {"user_id": 3}}, "metadata.user_id"),
        ({"thinking": 3}, "thinking"),
        ({"output_config": {"effort": "utmost"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
        ({"tools": {}}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "description": 3}]}, "tools[0].description"),
        ({"tool_choice": "any"}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        (
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": 1}},
            "tool_choice.disable_parallel_tool_use",
        ),
        ({"thread": {"type": "create"}}, "thread"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temprature": 0.5}, "temprature"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "sometimes"}}, "thinking"),
        ({"output_format": {"type": "text"}}, "output_format"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, _EDIT),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": 2}]}}, _EDIT),
        ({f"field_{n}": n for n in range(300)}, "body"),
    ],
)
def test_what_cannot_act_is_refused_by_its_name(change: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat_body({**BODY, **change})
    assert refused.value.param == param
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"messages": [{**HI, "name": "x"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": [{**text("x"), "y": 1}]}]}, "messages[0].content[0].y"),
        ({"metadata": {"team": "x"}}, "metadata.team"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        ({"output_config": {"pace": "low"}}, "output_config.pace"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
                    HI,
                ]
            },
            "messages[0].content[0]",
        ),
        ({"diagnostics": {"level": 3}}, "diagnostics"),
    ],
)
def test_what_changes_no_reply_is_left_out_and_counted_or_refused_where_requests_are_strict(
    change: dict[str, Any], at: str, caplog: pytest.LogCaptureFixture
) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    lenient, strict = LeftOutParts("/v1/messages", counts), LeftOutParts("/v1/messages", strict=True)
    asked = {**BODY, **change}
    for _ in range(3):
        chat = chat_body(asked, lenient)
    assert chat.keys() - {"metadata", "tools", "parallel_tool_calls"} == {"model", "max_tokens", "messages"}
    assert chat["messages"][-1] == HI or "content" in at
    assert [*counts.values()] == [3] and len(caplog.records) == 1, "each is logged once"
    with pytest.raises(RequestError) as refused:
        chat_body(asked, strict)
    assert refused.value.param == at and refused.value.status == 400


def test_tools_that_the_agent_runs_are_functions_and_the_others_are_left_out() -> None:
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "web_search_20260209", "name": "web_search", "max_uses": 3},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {**TOOL, "type": "custom"},
    ]
    chat = chat_body({**BODY, "tools": tools, "tool_choice": {"type": "tool", "name": "bash"}})
    shown = {tool["function"]["name"]: tool["function"]["parameters"] for tool in chat["tools"]}
    assert [*shown] == ["bash", "str_replace_based_edit_tool", "memory", "read"]
    assert shown["bash"]["properties"].keys() == {"command", "restart"}
    assert "insert_text" in shown["str_replace_based_edit_tool"]["properties"]
    assert read_chat_request(chat, max_n=1).tool_choice.names == ("bash",)


def test_a_context_edit_that_keeps_everything_is_accepted() -> None:
    keeps = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    for value in (keeps, {}, {"edits": []}):
        assert chat_body({**BODY, "context_management": value}) == chat_body(BODY)


def test_a_call_without_a_name_and_a_tool_that_was_found_are_shown_as_they_are() -> None:
    calls = [{"type": "tool_use", "id": "a", "input": {"x": 1}}]
    found = [{"type": "tool_reference", "tool_name": "read"}, {"type": "text", "text": "b"}]
    results = [{"type": "tool_result", "tool_use_id": "a", "content": found}]
    messages = [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    said, result = read_chat_request(chat_body({**BODY, "messages": messages}), max_n=1).messages
    assert said["tool_calls"][0]["function"] == {"name": "", "arguments": '{"x":1}'}
    assert result["content"] == "read\nb"


@pytest.mark.parametrize("kind", ["image", "document", "search_result", "container_upload", "tool_use"])
def test_what_is_no_text_is_refused_by_its_type(kind: str) -> None:
    block = {"type": kind, "source": {"type": "url", "url": "http://x"}}
    for content in ([block], [{"type": "tool_result", "tool_use_id": "a", "content": [block]}]):
        with pytest.raises(RequestError, match=kind):
            chat_body({**BODY, "messages": [{"role": "user", "content": content}]})


def test_counting_needs_no_max_tokens() -> None:
    assert chat_body({"model": "m", "messages": [HI]}, counting=True)["messages"] == [HI]

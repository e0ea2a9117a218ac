"""Tools of the Responses API that the agent runs and that are no functions: called, answered, continued."""

from __future__ import annotations

import json
from typing import Any

import pytest
from live import Live
from scripted_engine import Script

PATCH = '*** Begin Patch\n*** Add File: "a".txt\n+hi\n*** End Patch'
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /.+/'}
FUNCTION = {"type": "function", "name": "close_agent", "parameters": {"type": "object"}, "strict": False}
NAMESPACE = {"type": "namespace", "name": "multi_agent_v1", "description": "Agents", "tools": [FUNCTION]}
FOUND = {"type": "function", "name": "browse", "description": "Opens pages", "parameters": {"type": "object"}}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}

CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "custom": (
        {"type": "custom", "name": "apply_patch", "description": "Edits files", "format": GRAMMAR},
        "apply_patch",
        {"input": PATCH},
        {"type": "custom_tool_call", "name": "apply_patch", "input": PATCH},
        {"type": "custom_tool_call_output", "output": [{"type": "input_text", "text": "done"}]},
        "done",
    ),
    "namespace": (
        NAMESPACE,
        "multi_agent_v1__close_agent",
        {"target": "x"},
        {"type": "function_call", "name": "close_agent", "namespace": "multi_agent_v1"},
        {"type": "function_call_output", "output": "closed"},
        "closed",
    ),
    "local_shell": (
        {"type": "local_shell"},
        "local_shell",
        {"command": ["ls", "-l"], "timeout_ms": 9},
        {
            "type": "local_shell_call",
            "action": {"type": "exec", "env": {}, "command": ["ls", "-l"], "timeout_ms": 9},
        },
        {"type": "local_shell_call_output", "output": "a.txt"},
        "a.txt",
    ),
    "shell": (
        {"type": "shell", "environment": {"type": "local"}},
        "shell",
        {"commands": ["ls"]},
        {"type": "shell_call", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "output": [{"stdout": "a", "stderr": ""}]},
        '[{"stdout":"a","stderr":""}]',
    ),
    "apply_patch": (
        {"type": "apply_patch"},
        "apply_patch",
        {"type": "create_file", "path": "a", "diff": "+hi"},
        {"type": "apply_patch_call", "operation": {"type": "create_file", "path": "a", "diff": "+hi"}},
        {"type": "apply_patch_call_output", "status": "failed", "output": "no such file"},
        "failed\nno such file",
    ),
    "tool_search": (
        SEARCH,
        "tool_search",
        {"query": "web"},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "web"}},
        {"type": "tool_search_output", "execution": "client", "tools": [FOUND]},
        '[{"name":"browse","description":"Opens pages","parameters":{"type":"object"}}]',
    ),
}
"""The tool, the function that is called, its arguments, fields of the call's item, the result, its text."""


def replies(live: Live, *texts: str) -> None:
    """What the model says, one after the other."""
    left = iter(texts)
    live.engine.answer = lambda request: Script(ids=live.renderer.encode(f"{next(left)}<|im_end|>"))


def call_of(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("case", CASES)
async def test_a_call_and_its_result_are_items_and_extend_what_was_sampled(
    live: Live, case: str, stored: bool
) -> None:
    tool, called, arguments, fields, result, text = CASES[case]
    replies(live, call_of(called, arguments), "done")
    asked: dict[str, Any] = {"model": "player", "tools": [tool, FUNCTION], "store": stored}
    first = await live.client.responses.create(input="hi", **asked)
    (item,) = (one.to_dict() for one in first.output)
    assert fields.items() <= item.items() and item["status"] == "completed"
    answer = {**result, "call_id": item["call_id"]}
    if stored:
        second = await live.client.responses.create(input=[answer], previous_response_id=first.id, **asked)
    else:
        history = [{"role": "user", "content": "hi"}, item, answer]
        second = await live.client.responses.create(input=history, **asked)
    assert second.output_text == "done"
    before, after = (list(one.prompt_ids) for one in live.engine.requests)
    sampled = live.renderer.encode(f"{call_of(called, arguments)}<|im_end|>")
    assert after[: len(before) + len(sampled)] == before + sampled
    assert text in live.renderer.decode(after[len(before) :])
    assert (live.stitcher.stitched, live.stitcher.forks.total()) == (1, 0)


async def test_the_text_of_a_custom_call_is_streamed_by_its_own_events(live: Live) -> None:
    tool, called, arguments, fields, *_ = CASES["custom"]
    replies(live, call_of(called, arguments))
    kinds, text = [], ""
    stream = await live.client.responses.create(model="player", input="hi", tools=[tool], stream=True)
    async for event in stream:
        kinds.append(event.type)
        if event.type == "response.custom_tool_call_input.delta":
            text += event.delta
        elif event.type == "response.output_item.added":
            assert event.item.input == ""
        elif event.type == "response.output_item.done":
            assert fields.items() <= event.item.to_dict().items()
    assert text == PATCH
    assert kinds[2:-1] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]


async def test_a_custom_tool_s_grammar_is_shown_and_a_found_tool_is_called_by_its_own_item(
    live: Live,
) -> None:
    custom = {"type": "namespace", "name": "functions", "description": "", "tools": [CASES["custom"][0]]}
    more = {"type": "additional_tools", "role": "developer", "tools": [custom, SEARCH]}
    found = {**NAMESPACE, "name": "web", "tools": [FOUND]}
    call = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "x"}}
    result = {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [found]}
    replies(live, call_of("web__browse", {"url": "a"}))
    reply = await live.client.responses.create(
        model="player", input=[more, {"role": "user", "content": "hi"}, call, result]
    )
    (item,) = (one.to_dict() for one in reply.output)
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "browse", "web")
    prompt = live.renderer.decode(live.engine.requests[0].prompt_ids)
    assert '"name": "apply_patch"' in prompt and "follows this grammar (lark)" in prompt
    assert prompt.index('"name": "tool_search"') < prompt.index("web__browse")


async def test_arguments_that_are_no_object_still_reach_the_tool(live: Live) -> None:
    """What a small model writes: a command as one text, an input under another name."""
    for tool, arguments, field, value in (
        ("local_shell", {"command": "ls | wc"}, "action", ["bash", "-lc", "ls | wc"]),
        ("custom", {"patch": "x"}, "input", '{"patch": "x"}'),
    ):
        replies(live, call_of(CASES[tool][1], arguments))
        reply = await live.client.responses.create(model="player", input="hi", tools=[CASES[tool][0]])
        told = reply.output[0].to_dict()[field]
        assert (told["command"] if field == "action" else told) == value


async def test_one_of_them_can_be_demanded(live: Live) -> None:
    replies(live, call_of("local_shell", {"command": ["ls"]}), call_of("apply_patch", {"input": "x"}))
    tools = [CASES["local_shell"][0], CASES["custom"][0], {"type": "web_search"}]
    for choice in ({"type": "local_shell"}, {"type": "custom", "name": "apply_patch"}):
        await live.client.responses.create(model="player", input="hi", tools=tools, tool_choice=choice)
        constraint = live.engine.requests[-1].sampling.constraint
        assert constraint is not None and choice.get("name", "local_shell") in constraint.text


async def test_a_call_without_a_name_and_a_result_without_a_text_are_shown_as_they_are(live: Live) -> None:
    """A small model writes the first, and a tool that has nothing to say sends the second."""
    call = {"id": "c", "type": "function", "function": {"arguments": '{"x": 1}'}}
    history: list[Any] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": None},
    ]
    await live.client.chat.completions.create(model="player", messages=history)
    items: list[Any] = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": None},
    ]
    await live.client.responses.create(model="player", input=items)
    chat, responses = (live.renderer.decode(one.prompt_ids) for one in live.engine.requests)
    assert chat == responses
    assert '{"name": "", "arguments": {"x": 1}}' in chat and "<tool_response>\n\n</tool_response>" in chat

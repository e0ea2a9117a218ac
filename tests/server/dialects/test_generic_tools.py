"""An agent with tools on a model whose template knows none, through each dialect: call, result, stitching."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_folder import CHATML, SPECIAL, write_chat_folder
from live import KEY, Live, run_gateway
from scripted_engine import Script, ScriptedEngine

from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer
from waiting import DEADLINE_S

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}}
CALLS = (
    'I look.\n<tool_call>[{"name": "read", "arguments": {"id":1.0}}, '
    '{"name": "read", "arguments": {"id": 2}}]</tool_call>'
)
TURN = (
    "\n<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LibraryRenderer:
    folder = tmp_path_factory.mktemp("plain")
    write_chat_folder(folder, marker=None, chat_template=CHATML, model_type="mystery", markers=SPECIAL)
    return create_chat_renderer(folder, name="plain")


@pytest.fixture
async def agent(tmp_path: Path, plain: LibraryRenderer) -> AsyncIterator[Live]:
    """Calls twice, then says that it is done."""
    replies = iter((CALLS, "done"))
    engine = ScriptedEngine(lambda request: Script(ids=plain.encode(f"{next(replies)}<|im_end|>")))
    async with run_gateway(tmp_path / "ledger.sqlite", engine, plain) as running:
        yield running


async def check_turns(agent: Live) -> None:
    """The second prompt is the first, the sampled ids, and the results; both calls are on record."""
    asked, continued = (list(one.prompt_ids) for one in agent.engine.requests)
    sampled = agent.renderer.encode(f"{CALLS}<|im_end|>")
    assert continued == asked + sampled + agent.renderer.encode(TURN)
    assert "You are an expert in composing functions" in agent.renderer.decode(asked)
    assert '"name": "read"' in agent.renderer.decode(asked)
    assert (agent.stitcher.stitched, agent.stitcher.forks.total()) == (1, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_completions(agent: Live, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    asked: dict[str, Any] = {"model": "player", "tools": tools}
    if stream:
        async with agent.client.chat.completions.stream(messages=messages, **asked) as events:
            reply = await events.get_final_completion()
    else:
        reply = await agent.client.chat.completions.create(messages=messages, **asked)
    message = reply.choices[0].message
    assert (message.content, reply.choices[0].finish_reason) == ("I look.", "tool_calls")
    assert [call.function.arguments for call in message.tool_calls] == ['{"id":1.0}', '{"id": 2}']
    messages.append(message.to_dict())
    for call, text in zip(message.tool_calls, "ab", strict=True):
        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    reply = await agent.client.chat.completions.create(messages=messages, **asked)
    assert reply.choices[0].message.content == "done"
    await check_turns(agent)


@pytest.mark.extension
async def test_responses(agent: Live) -> None:
    tools: list[Any] = [{"type": "function", "name": "read", "parameters": SCHEMA, "strict": False}]
    reply = await agent.client.responses.create(model="player", input="hi", tools=tools)
    assert reply.output_text == "I look."
    calls = [item for item in reply.output if item.type == "function_call"]
    assert [call.arguments for call in calls] == ['{"id":1.0}', '{"id": 2}']
    results: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": text}
        for call, text in zip(calls, "ab", strict=True)
    ]
    reply = await agent.client.responses.create(
        model="player", previous_response_id=reply.id, input=results, tools=tools
    )
    assert reply.output_text == "done"
    assert agent.renderer.decode(agent.engine.requests[0].prompt_ids).count('"name": "read"') == 1
    await check_turns(agent)


@pytest.mark.extension
async def test_anthropic_messages(agent: Live) -> None:
    asked: dict[str, Any] = {
        "model": "player",
        "max_tokens": 400,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "read", "input_schema": SCHEMA}],
    }
    async with httpx.AsyncClient(
        base_url=agent.url, headers={"x-api-key": KEY}, timeout=DEADLINE_S
    ) as client:
        reply = (await client.post("/v1/messages", json=asked)).raise_for_status().json()
        text, *calls = reply["content"]
        assert (text["text"], reply["stop_reason"]) == ("I look.", "tool_use")
        assert [call["input"] for call in calls] == [{"id": 1}, {"id": 2}]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": text}
            for call, text in zip(calls, "ab", strict=True)
        ]
        asked["messages"] += [
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": results},
        ]
        reply = (await client.post("/v1/messages", json=asked)).raise_for_status().json()
    assert reply["content"][0]["text"] == "done"
    await check_turns(agent)


async def test_a_required_call_is_held_to_the_format(agent: Live) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]
    agent.engine.answer = lambda request: Script(
        ids=agent.renderer.encode('<tool_call>[{"name": "read", "arguments": {"id": 1')
    )
    reply = await agent.client.chat.completions.create(
        model="player",
        messages=[{"role": "user", "content": "hi"}],
        tools=tools,
        tool_choice={"type": "function", "function": {"name": "read"}},
    )
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.arguments == '{"id": 1'
    constraint = agent.engine.requests[0].sampling.constraint
    assert constraint is not None
    assert json.dumps('{"name": "read", "arguments": ') in constraint.text

"""Calls that a small model writes wrongly go into the history and back, in each dialect of agents."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httpx
import pytest
from live import KEY, Live
from scripted_engine import Script

import art
from art.trajectories import is_choice

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
READ = {"name": "read", "description": "Reads", "parameters": SCHEMA}
WRITTEN = {
    "no name": '<tool_call>\n{"arguments": {"id": 1}}\n</tool_call>',
    "an empty name": '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
    "a name that is none": '<tool_call>\n{"name": 7, "arguments": {}}\n</tool_call>',
    "no JSON": '<tool_call>\n{"name": "read", "arguments": {"id": }}\n</tool_call>',
    "a list": '<tool_call>\n{"name": "read", "arguments": [1]}\n</tool_call>',
    "cut off": 'I read.\n<tool_call>\n{"name": "re',
    "one of two": '<tool_call>\n{"name": "read", "arguments": {"id": 1}}\n</tool_call>\n<tool_call>\n{"na',
    "another tool": '<tool_call>\n{"name": "write", "arguments": {"id": 1}}\n</tool_call>',
    "other arguments": '<tool_call>\n{"name": "read", "arguments": {"x": null}}\n</tool_call>',
}
"""What the model says, by what is wrong with it."""
ARGUMENTS = ("", "{", '{"id": }', "[1]", "null", "7", '"text"', '{"id": 1} {"id": 2}', '{"id": NaN}')


async def chat(client: httpx.AsyncClient, past: list[Any]) -> list[Any]:
    """Asks once more. Returns the conversation with the reply, as an agent keeps it."""
    past = past or [{"role": "user", "content": "begin"}]
    body = {"model": "player", "messages": past, "tools": [{"type": "function", "function": READ}]}
    message = answered(await client.post("/v1/chat/completions", json=body))["choices"][0]["message"]
    calls = message.get("tool_calls") or ()
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "error"} for one in calls]
    return [*past, message, *(results or [{"role": "user", "content": "again"}])]


async def responses(client: httpx.AsyncClient, past: list[Any]) -> list[Any]:
    past = past or [{"role": "user", "content": "begin"}]
    body = {"model": "player", "input": past, "tools": [{"type": "function", **READ}]}
    output = answered(await client.post("/v1/responses", json=body))["output"]
    results = [
        {"type": "function_call_output", "call_id": one["call_id"], "output": "error"}
        for one in output
        if one["type"] == "function_call"
    ]
    return [*past, *output, *(results or [{"role": "user", "content": "again"}])]


async def messages(client: httpx.AsyncClient, past: list[Any]) -> list[Any]:
    past = past or [{"role": "user", "content": "begin"}]
    tool = {"name": READ["name"], "description": READ["description"], "input_schema": SCHEMA}
    body = {"model": "player", "messages": past, "tools": [tool], "max_tokens": 200}
    content = answered(await client.post("/v1/messages", json=body))["content"]
    results = [
        {"type": "tool_result", "tool_use_id": one["id"], "content": "error", "is_error": True}
        for one in content
        if one["type"] == "tool_use"
    ]
    return [
        *past,
        {"role": "assistant", "content": content},
        {"role": "user", "content": results or "again"},
    ]


def answered(reply: httpx.Response) -> Any:
    assert reply.status_code == 200, reply.text
    return reply.json()


def player(live: Live) -> art.TrainableModel:
    known = art.TrainableModel(name="player", project="games", base_model="tiny")
    known.inference_base_url, known.inference_api_key = f"{live.url}/v1", KEY
    return known


@pytest.mark.parametrize("ask", [chat, responses, messages], ids=lambda ask: ask.__name__)
async def test_what_the_model_wrote_comes_back_as_it_was_sampled(live: Live, ask: Any) -> None:
    texts = [*WRITTEN.values(), "Done."]
    replies = iter(texts)
    live.engine.answer = lambda request: Script(ids=live.renderer.encode(f"{next(replies)}<|im_end|>"))
    async with art.rollout(player(live)) as rollout:
        headers = {"authorization": f"Bearer {rollout.api_key}"}
        async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=240) as client:
            past: list[Any] = []
            for _ in texts:
                past = await ask(client, past)
    assert not rollout.forks and not rollout.trajectory.additional_histories
    assert sum(is_choice(one) for one in rollout.trajectory.messages_and_choices) == len(texts)
    samples = await live.ledger.rollout(rollout.rollout_id)
    for before, after in pairwise(samples):
        whole = [*before.prompt_ids, *before.completion_ids]
        assert list(after.prompt_ids)[: len(whole)] == whole


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("name", ["read", "", "no such tool"])
async def test_a_call_of_a_client_s_history_is_shown_as_it_is(live: Live, name: str, arguments: str) -> None:
    """A program that mends the history of its model, or has it from another one."""
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    begin = {"role": "user", "content": "begin"}
    history = [begin, {"role": "assistant", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c", "content": "error"}
    item = {"type": "function_call", "call_id": "c", "name": name, "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "c", "output": "error"}
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=240) as client:
        for path, body in (
            ("/v1/chat/completions", {"messages": [*history, result]}),
            ("/v1/responses", {"input": [begin, item, output]}),
        ):
            answered(await client.post(path, json={"model": "player", **body}))
    prompts = [live.renderer.decode(request.prompt_ids) for request in live.engine.requests]
    assert prompts[0] == prompts[1] and f'"name": "{name}"' in prompts[0]
    shown = prompts[0].partition('"arguments": ')[2].partition("\n</tool_call>")[0]
    assert arguments.strip('{}" ') in shown


@pytest.mark.parametrize("given", ["", "{", [1], None, 7])
async def test_anthropic_s_input_is_an_object_or_is_refused_by_its_name(live: Live, given: Any) -> None:
    use = {"type": "tool_use", "id": "c", "name": "", "input": given}
    history = [{"role": "user", "content": "begin"}, {"role": "assistant", "content": [use]}]
    body = {"model": "player", "messages": history, "max_tokens": 9}
    async with httpx.AsyncClient(base_url=live.url, headers={"x-api-key": KEY}, timeout=240) as client:
        reply = await client.post("/v1/messages", json=body)
    assert reply.status_code == 400 and "input" in reply.json()["error"]["message"], reply.text

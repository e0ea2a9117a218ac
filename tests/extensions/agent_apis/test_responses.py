"""The Responses API through the real openai client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from live import Live
from openai.types.responses import Response
from pydantic import BaseModel
from scripted_engine import Script

from art.engine.protocol import GenerateRequest
from art.wire.rollouts import ROLLOUT_HEADER

IN_GAME = {"extra_headers": {ROLLOUT_HEADER: "game-1"}}
READ = {
    "type": "function",
    "name": "read",
    "description": "Reads a mail.",
    "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}},
    "strict": False,
}
TWO_CALLS = (
    "I look.\n"
    '<tool_call>\n{"name": "read", "arguments": {"id": 1.0}}\n</tool_call>\n'
    '<tool_call>\n{"name": "read", "arguments": {"id":2}}\n</tool_call>'
)


def says(live: Live, text: str, **more: Any) -> None:
    """Let the engine answer with the ids of a text."""
    live.engine.answer = lambda request: Script(ids=live.renderer.encode(f"{text}<|im_end|>"), **more)


def strictly(response: Response) -> Response:
    """The response checked against the SDK's types, which its client does not do by itself."""
    return Response.model_validate(json.loads(response.model_dump_json(by_alias=True)), strict=False)


async def test_a_text_is_answered(live: Live) -> None:
    reply = await live.client.responses.create(model="player", input="hi", **IN_GAME)
    assert reply.output_text == "hello"
    assert (reply.status, reply.incomplete_details, reply.error) == ("completed", None, None)
    (record,) = await live.ledger.rollout("game-1")
    assert reply.model_extra["sample_id"] == record.sample_id
    assert reply.model_extra["step"] == 3
    assert reply.output[0].model_extra["sample_id"] == record.sample_id
    assert reply.usage.input_tokens == len(record.prompt_ids)
    assert reply.usage.output_tokens == len(record.completion_ids) == reply.model_extra["completion_tokens"]
    asked = live.renderer.render([{"role": "user", "content": "hi"}], None)
    assert list(live.engine.requests[0].prompt_ids) == asked
    assert strictly(reply).id.startswith("resp_")


async def test_a_chat_completion_has_the_same_prompt(live: Live) -> None:
    await live.client.responses.create(
        model="player",
        instructions="be brief",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"role": "user", "content": "c"},
        ],
        tools=[READ],
    )
    function = {name: value for name, value in READ.items() if name != "type"}
    await live.client.chat.completions.create(
        model="player",
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        tools=[{"type": "function", "function": function}],
    )
    first, second = live.engine.requests
    assert list(first.prompt_ids) == list(second.prompt_ids)


async def test_options_reach_the_engine_and_come_back(live: Live) -> None:
    reply = await live.client.responses.create(
        model="tiny",
        input="hi",
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=30,
        metadata={"why": "test"},
        user="somebody",
        extra_body={"top_k": 5, "min_p": 0.01, "seed": 7, "stop": ["x"]},
    )
    sampling = live.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.5, 0.9, 30)
    assert (sampling.top_k, sampling.min_p, sampling.seed, sampling.stop) == (5, 0.01, 7, ("x",))
    assert (reply.temperature, reply.top_p, reply.max_output_tokens) == (0.5, 0.9, 30)
    assert (reply.metadata, reply.user) == ({"why": "test"}, "somebody")
    (record,) = await live.ledger.samples([reply.model_extra["sample_id"]])
    assert record.sampling["metadata"] == {"why": "test"}


async def test_a_reply_that_was_cut_off_is_incomplete(live: Live) -> None:
    says(live, "abcdef")
    reply = await live.client.responses.create(model="tiny", input="hi", max_output_tokens=3)
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (reply.output_text, reply.output[0].status) == ("abc", "incomplete")
    strictly(reply)


async def test_thinking_is_an_item(live: Live) -> None:
    says(live, "<think>\nhm\n</think>\n\nhello")
    reply = strictly(await live.client.responses.create(model="tiny", input="hi"))
    assert [item.type for item in reply.output] == ["reasoning", "message"]
    assert reply.output[0].content[0].text == "hm"
    assert reply.usage.output_tokens_details.reasoning_tokens == len(live.renderer.encode("hm"))


async def test_calls_are_items_with_arguments_as_written(live: Live) -> None:
    says(live, TWO_CALLS)
    reply = strictly(await live.client.responses.create(model="tiny", input="hi", tools=[READ]))
    assert [item.type for item in reply.output] == ["message", "function_call", "function_call"]
    assert [item.arguments for item in reply.output[1:]] == ['{"id": 1.0}', '{"id":2}']
    assert len({item.call_id for item in reply.output[1:]}) == 2
    assert reply.tools[0].name == "read"
    says(live, TWO_CALLS)
    reply = await live.client.responses.create(model="tiny", input="hi", tools=[READ], tool_choice="none")
    assert [item.type for item in reply.output] == ["message"]


async def test_an_empty_reply_is_an_empty_message(live: Live) -> None:
    says(live, "")
    reply = await live.client.responses.create(model="tiny", input="hi")
    assert (reply.output_text, len(reply.output)) == ("", 1)


async def test_logprobs_are_included_where_asked(live: Live) -> None:
    reply = await live.client.responses.create(
        model="tiny", input="hi", include=["message.output_text.logprobs", "reasoning.encrypted_content"]
    )
    told = strictly(reply).output[0].content[0].logprobs
    assert [entry.logprob for entry in told] == live.engine.logprobs(2)
    assert "".join(entry.token for entry in told) == "hello<|im_end|>"


async def converse(live: Live, follow: Any, *, client: openai.AsyncOpenAI | None = None) -> list[list[int]]:
    """Two calls, their results, a question: each turn's prompt after what was known before it."""
    create = (client or live.client).responses.create

    def answer(request: GenerateRequest) -> Script:
        texts = [TWO_CALLS, "<think>\nso  so\n</think>\n\n  h ello \n", "bye"]
        return Script(ids=live.renderer.encode(texts[len(live.engine.requests) - 1] + "<|im_end|>"))

    live.engine.answer = answer
    reply = await create(**follow(None, [{"role": "user", "content": "hi"}]))
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": f"mail {item.arguments}"}
        for item in reply.output
        if item.type == "function_call"
    ]
    assert len(results) == 2
    reply = await create(**follow(reply, results))
    await create(**follow(reply, [{"role": "user", "content": "and?"}]))
    return [
        [*request.prompt_ids, *live.engine.emitted[request.request_id]] for request in live.engine.requests
    ]


OPTIONS: dict[str, Any] = {"model": "player", "tools": [READ], "instructions": "be brief", **IN_GAME}


def by_items() -> Any:
    history: list[Any] = []

    def follow(reply: Any, new: list[Any]) -> dict[str, Any]:
        if reply is not None:
            history.extend(item.model_dump(exclude_unset=True) for item in reply.output)
        history.extend(new)
        return {**OPTIONS, "input": list(history)}

    return follow


def by_bare_items() -> Any:
    """As frameworks do that keep no ids of theirs, no status and no thoughts."""
    history: list[Any] = []

    def follow(reply: Any, new: list[Any]) -> dict[str, Any]:
        for item in reply.output if reply is not None else ():
            if item.type == "message":
                history.append({"role": "assistant", "content": item.content[0].text})
            elif item.type == "function_call":
                history.append(item.model_dump(include={"type", "call_id", "name", "arguments"}))
        history.extend(new)
        return {**OPTIONS, "input": list(history), "store": False}

    return follow


def by_id() -> Any:
    def follow(reply: Any, new: list[Any]) -> dict[str, Any]:
        return {**OPTIONS, "input": new, "previous_response_id": reply.id if reply else None}

    return follow


def by_reference() -> Any:
    history: list[Any] = []

    def follow(reply: Any, new: list[Any]) -> dict[str, Any]:
        for item in reply.output if reply is not None else ():
            history.append({"type": "item_reference", "id": item.id})
        history.extend(new)
        return {**OPTIONS, "input": list(history)}

    return follow


@pytest.mark.slow
@pytest.mark.parametrize("way", [by_items, by_bare_items, by_id, by_reference])
async def test_a_conversation_extends_its_ids(live: Live, way: Any) -> None:
    first, second, third = await converse(live, way())
    asked = live.engine.requests
    assert list(asked[1].prompt_ids)[: len(first)] == first
    assert list(asked[2].prompt_ids)[: len(second)] == second
    records = await live.ledger.rollout("game-1")
    assert [record.fork_reason for record in records] == [None, None, None]
    assert [record.parent_id for record in records] == [None, *(r.sample_id for r in records[:2])]
    text = live.renderer.decode(third)
    assert text.count("mail {") == 2 and text.count('"arguments": {"id"') == 2


async def test_an_edited_history_is_a_fork(live: Live) -> None:
    reply = await live.client.responses.create(model="player", input="hi", **IN_GAME)
    said = reply.output[0].model_dump(exclude_unset=True)
    said["content"][0]["text"] = "something else"
    more = {"role": "user", "content": "and?"}
    await live.client.responses.create(
        model="player", input=[{"role": "user", "content": "hi"}, said, more], **IN_GAME
    )
    _, fork = await live.ledger.rollout("game-1")
    assert (fork.parent_id, fork.fork_reason) == (None, "history_edited")


async def test_stored_responses_are_found_until_they_are_deleted(live: Live) -> None:
    create, responses = live.client.responses.create, live.client.responses
    first = await create(model="tiny", input="hi")
    second = await create(model="tiny", input="and?", previous_response_id=first.id)
    assert (await responses.retrieve(second.id)).model_dump() == second.model_dump()
    items = (await responses.input_items.list(second.id, order="asc")).data
    assert [(item.role, item.content[0].text) for item in items] == [
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "and?"),
    ]
    page = await responses.input_items.list(second.id, limit=1)
    assert [item.content[0].text for item in page.data] == ["and?"] and page.has_more
    rest = await responses.input_items.list(second.id, after=page.data[0].id)
    assert [item.content[0].text for item in rest.data] == ["hello", "hi"]
    await responses.delete(first.id)
    for asked in (
        responses.retrieve(first.id),
        responses.delete(first.id),
        create(model="tiny", input="x", previous_response_id=second.id),
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            await asked
        assert first.id in refused.value.message


async def test_what_is_not_to_be_stored_is_not(live: Live) -> None:
    reply = await live.client.responses.create(model="tiny", input="hi", store=False)
    with pytest.raises(openai.NotFoundError) as refused:
        await live.client.responses.retrieve(reply.id)
    assert refused.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError) as refused:
        await live.client.responses.create(model="tiny", input="x", previous_response_id=reply.id)
    assert refused.value.code == "previous_response_not_found"
    assert "store = false" in refused.value.message


async def test_parse_gives_an_object(live: Live) -> None:
    class Mail(BaseModel):
        owner: str

    says(live, '{"owner": "k7"}')
    reply = await live.client.responses.parse(model="tiny", input="hi", text_format=Mail)
    assert reply.output_parsed == Mail(owner="k7")


SCHEMA = {"type": "object", "properties": {"owner": {"type": "string"}}, "required": ["owner"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "chats"),
    [
        (
            {"text": {"format": {"type": "json_schema", "name": "mail", "schema": SCHEMA, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "mail", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "name": "read"}},
            {"tool_choice": {"type": "function", "function": {"name": "read"}}},
        ),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
    ],
)
async def test_texts_and_calls_are_constrained_as_in_chats(live: Live, ours: Any, chats: Any) -> None:
    says(live, '<tool_call>\n{"name": "read", "arguments": {"id": 1}}\n</tool_call>')
    tools = [READ] if "tool_choice" in ours else []
    await live.client.responses.create(model="tiny", input="hi", tools=tools, **ours)
    functions = (
        [{"type": "function", "function": {k: v for k, v in READ.items() if k != "type"}}] if tools else []
    )
    hello = [{"role": "user", "content": "hi"}]
    await live.client.chat.completions.create(model="tiny", messages=hello, tools=functions, **chats)
    first, second = (request.sampling.constraint for request in live.engine.requests)
    assert first == second and first is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tools": ["web_search"]}, "tools[0]"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{"type": "custom", "name": "x", "format": {"type": "xml"}}]}, "tools[0].format"),
        ({"tools": [{"type": "namespace", "name": "x"}]}, "tools[0]"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
        ({"background": True}, "background"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"extra_body": {"presence_penalty": 9}}, "presence_penalty"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": 5}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning": {"effort": "utmost"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"extra_body": {"temprature": 0.5}}, "temprature"),
        ({"extra_body": {"context_management": [{"type": "compaction"}]}}, "context_management"),
        ({"extra_body": {"messages": []}}, "messages"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "wizard", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "custom_tool_call", "call_id": "x", "input": 3}]}, "input[0].input"),
        ({"input": [{"type": "additional_tools"}]}, "input[0].tools"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(live: Live, change: dict, named: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await live.client.responses.create(**{"model": "tiny", "input": "hi", **change})
    assert refused.value.param == named
    assert (
        named.rpartition(".")[2].partition("[")[0] in refused.value.message or named in refused.value.message
    )
    assert not live.engine.requests


async def test_values_that_ask_for_nothing_are_accepted(live: Live) -> None:
    await live.client.responses.create(
        model="tiny",
        input="hi",
        include=[],
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        background=False,
        truncation="auto",
        max_tool_calls=3,
        extra_body={"client_metadata": {"k": "v"}, "made_up": 1, "reasoning": {"context": "all_turns"}},
        top_logprobs=0,
        text={"format": {"type": "text"}, "verbosity": "low"},
        reasoning={"effort": None},
        service_tier="auto",
        prompt_cache_key="x",
    )
    assert len(live.engine.requests) == 1


async def test_a_summary_may_be_asked_for_and_reasoning_is_told_as_it_is(live: Live) -> None:
    """The tiny format has no efforts: one is no reason to refuse."""
    live.engine.answer = lambda request: Script(
        ids=live.renderer.encode("<think>\nhm\n</think>\n\nyes<|im_end|>")
    )
    asked = {"effort": "low", "summary": "auto"}
    reply = await live.client.responses.create(model="tiny", input="hi", reasoning=asked)
    thought, said = reply.output
    assert (thought.type, thought.summary, thought.content[0].text) == ("reasoning", [], "hm")
    assert said.content[0].text == "yes"
    assert (reply.reasoning.effort, reply.reasoning.summary) == ("low", "auto")


async def test_no_effort_is_no_thinking(live: Live) -> None:
    for effort in (None, "none"):
        await live.client.responses.create(model="tiny", input="hi", reasoning={"effort": effort})
    plain, quiet = (live.renderer.decode(request.prompt_ids) for request in live.engine.requests)
    assert quiet == plain + "<think>\n\n</think>\n\n"

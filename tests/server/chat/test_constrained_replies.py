"""Replies that must look like something, from a real engine with random weights."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from chat_folder import write_chat_folder
from live import Live, run_gateway
from transformers import Qwen3Config, Qwen3ForCausalLM

from art.engine.builtin.engine import BuiltinEngine
from art.rendering.registry import create_chat_renderer
from art.wire.engine import BuiltinOptions

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "hello"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("read", page={"enum": [1, 2, 3]}), tool("stop")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_chat_folder(tmp_path_factory.mktemp("model"), marker="nano")
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=272,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.1,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
async def live(tmp_path: Path, folder: Path) -> AsyncIterator[Live]:
    """A gateway before a real engine."""
    torch.set_num_threads(1)
    engine: Any = await BuiltinEngine.start(str(folder), BuiltinOptions(threads=1))
    engine.adapters = set()
    try:
        async with run_gateway(
            tmp_path / "l.sqlite", engine, create_chat_renderer(folder), max_context=512
        ) as it:
            yield it
    finally:
        await engine.close()


async def ask(live: Live, **more: Any) -> Any:
    more = {"max_tokens": 300, "seed": 1, **more}
    return await live.client.chat.completions.create(model="tiny", messages=HELLO, **more)


@pytest.mark.parametrize("strict", [True, False])
async def test_a_json_schema_is_followed(live: Live, strict: bool) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": strict}}
    reply = await ask(live, response_format=asked, n=4)
    people = [json.loads(choice.message.content) for choice in reply.choices]
    assert all(set(person) == {"name", "old"} and isinstance(person["old"], bool) for person in people)
    assert len({choice.message.content for choice in reply.choices}) > 1
    (record,) = await live.ledger.samples([reply.choices[0].model_extra["sample_id"]])
    assert record.sampling["constraint"]["kind"] == "json_schema"
    assert record.sampling["constraint"]["by"] == "builtin"
    assert json.loads(record.sampling["constraint"]["text"]) == PERSON


async def test_any_json_object(live: Live) -> None:
    reply = await ask(live, response_format={"type": "json_object"}, stop=["}"], max_tokens=200)
    assert reply.choices[0].message.content.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({"guided_choice": ["red", "green"]}, lambda text: text in ("red", "green")),
        ({"guided_regex": "[0-9]{3}-[a-c]"}, lambda text: len(text) == 5 and text[3] == "-"),
        ({"guided_json": {"enum": ["x", 7]}}, lambda text: json.loads(text) in ("x", 7)),
        ({"guided_json": '{"const": 5}'}, lambda text: text == "5"),
        ({"guided_grammar": 'start: "a" ("b" | "c") "d"'}, lambda text: text in ("abd", "acd")),
        ({"structured_outputs": {"choice": ["red", "green"]}}, lambda text: text in ("red", "green")),
        ({"structured_outputs": {"regex": "x{4}"}}, lambda text: text == "xxxx"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",  # a function's name differs by process
)
async def test_what_vllm_s_clients_send(live: Live, asked: dict[str, Any], fits: Any) -> None:
    reply = await ask(live, extra_body=asked)
    assert fits(reply.choices[0].message.content) and reply.choices[0].finish_reason == "stop"


async def test_a_call_is_demanded(live: Live) -> None:
    reply = await ask(live, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, n=6)
    names = set()
    for choice in reply.choices:
        (call,) = choice.message.tool_calls
        names.add(call.function.name)
        arguments = json.loads(call.function.arguments)
        assert arguments.get("page") in (1, 2, 3) if call.function.name == "read" else arguments == {}
        assert choice.finish_reason == "tool_calls" and not choice.message.content
    assert names == {"read", "stop"}


async def test_one_tool_is_demanded_by_name(live: Live) -> None:
    named = {"type": "function", "function": {"name": "read"}}
    reply = await ask(live, tools=TOOLS, tool_choice=named, parallel_tool_calls=False, n=3)
    for choice in reply.choices:
        assert [call.function.name for call in choice.message.tool_calls] == ["read"]
        assert choice.finish_reason == "stop"


async def test_some_of_the_tools_are_allowed(live: Live) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "stop"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    reply = await ask(live, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, n=3)
    assert {call.function.name for one in reply.choices for call in one.message.tool_calls} == {"stop"}


async def test_tools_and_a_response_format_together(live: Live) -> None:
    """The reply is a call, or a text of that form."""
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
    reply = await ask(live, tools=TOOLS, response_format=asked, parallel_tool_calls=False, n=16)
    texts = {one.message.content for one in reply.choices if not one.message.tool_calls}
    assert texts <= {'"yes"', '"no"'}
    assert any(one.message.tool_calls for one in reply.choices) and texts


async def test_a_stream_tells_partial_json(live: Live) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    stream = await ask(live, response_format=asked, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert len([piece for piece in pieces if piece]) > 2
    assert set(json.loads("".join(pieces))) == {"name", "old"}


async def test_a_stream_tells_a_demanded_call_piece_by_piece(live: Live) -> None:
    """Streamed or not the reply is the same, also where it reaches `max_tokens` within the call."""
    noting = tool("note", text={"type": "string", "minLength": 30, "maxLength": 40})
    for more in ({}, {"max_tokens": 45}):
        asked = {"tools": [noting], "tool_choice": "required", "parallel_tool_calls": False, **more}
        whole = (await ask(live, **asked)).choices[0]
        told = [chunk.choices[0] async for chunk in await ask(live, **asked, stream=True) if chunk.choices]
        calls = [call for choice in told for call in choice.delta.tool_calls or ()]
        assert calls[0].id and calls[0].function.name == "note"
        # A busy machine sends several tokens at once.
        assert len(calls) > 1 and all(call.function.name is None for call in calls[1:])
        arguments = "".join(call.function.arguments for call in calls)
        assert arguments == whole.message.tool_calls[0].function.arguments
        assert told[-1].finish_reason == whole.finish_reason == ("length" if more else "tool_calls")
        if not more:
            assert len(json.loads(arguments)["text"]) >= 30


async def test_a_bias_decides(live: Live) -> None:
    (token,) = live.renderer.encode("k")
    reply = await ask(live, logit_bias={str(token): 100}, max_tokens=4)
    assert reply.choices[0].message.content == "kkkk"
    with pytest.raises(openai.BadRequestError, match="272") as refused:
        await ask(live, logit_bias={"272": 1})
    assert refused.value.param == "logit_bias"


async def test_a_stop_id_ends_the_reply(live: Live) -> None:
    (token,) = live.renderer.encode("k")
    reply = await ask(live, logit_bias={str(token): 100}, extra_body={"stop_token_ids": [token]})
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("k", "stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_is_none_is_refused_before_anything_is_sampled(live: Live, stream: bool) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}
    with pytest.raises(openai.BadRequestError, match="objekt") as refused:
        await ask(live, response_format=asked, stream=stream)
    assert (refused.value.code, refused.value.param) == ("invalid_constraint", "response_format")


async def test_a_schema_without_an_end_is_refused(live: Live) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}
    with pytest.raises(openai.BadRequestError, match="refer to itself without an end"):
        await ask(live, response_format=asked)


async def test_a_deep_schema_is_refused(live: Live) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(150):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(openai.BadRequestError, match="recursion"):
        await ask(live, extra_body={"guided_json": json.dumps(schema)})


@pytest.mark.extension
async def test_a_teacher_s_turn_is_said_by_the_student(live: Live) -> None:
    """Self-play distillation: what the teacher said is the only thing that the student can say."""
    from art.guided_completion import get_guided_completion_params

    words = await ask(live, extra_body={"guided_choice": ["I have read it."]}, n=1)
    call = await ask(live, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    for teacher in (words, call):
        choice, forced, tools = get_guided_completion_params(teacher, TOOLS)
        student = await ask(
            live,
            seed=9,
            tools=tools,
            tool_choice=forced,
            extra_body={"guided_choice": choice} if choice else None,
        )
        said, taught = student.choices[0].message, teacher.choices[0].message
        assert (said.content or "") == (taught.content or "")
        if taught.tool_calls:
            ours, theirs = said.tool_calls[0].function, taught.tool_calls[0].function
            assert (ours.name, json.loads(ours.arguments)) == (theirs.name, json.loads(theirs.arguments))


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
async def test_what_is_no_text_is_refused_clearly(live: Live, kind: str) -> None:
    content = [{"type": "text", "text": "see"}, {"type": kind, kind: {}}]
    with pytest.raises(openai.BadRequestError, match=r"no data URL|takes text") as refused:
        await live.client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": content}]
        )
    assert refused.value.code == "unsupported_content" and kind in refused.value.message


async def test_a_text_model_refuses_an_image(live: Live) -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    with pytest.raises(openai.BadRequestError, match="this model takes text only") as refused:
        await live.client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": content}]
        )
    assert refused.value.code == "unsupported_content"

"""Calls that a request demands are told while they are sampled, and add up to those of the whole reply."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from chat_folder import CHATML, write_chat_folder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from live import KEY, Live
from scripted_engine import Script, ScriptedEngine

from art.engine.protocol import Delta, FinishReason
from art.recording.captured_reply import read_completion
from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer
from art.server.catalog import Target
from art.server.chat.chat_request import ChatRequest, read_chat_request
from art.server.chat.prompt_and_reply import PreparedRequest, constraint_of, finish_reason
from art.server.dialects.chat_completions import ChatChunks
from art.server.dialects.completion_service import StreamedChoice, StreamStarted
from art.server.dialects.dialect import StreamWriter
from art.server.ledger.stitching import Conversation, Stitched
from art_extensions.agent_apis.anthropic import MessageStream, blocks_of
from art_extensions.agent_apis.anthropic_request import chat_body
from art_extensions.agent_apis.responses import ResponseEvents, output_of, status_of_end
from art_extensions.agent_apis.responses_items import ResponseStore
from art_extensions.agent_apis.responses_request import ResponsesRequest, read_responses_request

HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]
RESPONSES_TOOLS = [{"type": "function", "name": "read", "parameters": SCHEMA}]
ANTHROPIC_TOOLS = [{"name": "read", "input_schema": SCHEMA}]
LONG = '<tool_call>\n{"name": "read", "arguments": {"x": "héllo 🙂 } \\" and so on"}}\n</tool_call>'


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LibraryRenderer]:
    """The formats that write a call as JSON between markers."""

    def made(name: str, **options: Any) -> LibraryRenderer:
        return create_chat_renderer(write_chat_folder(tmp_path_factory.mktemp(name), **options), name=name)

    counting = {"marker": None, "chat_template": "{{ messages | length }}" + CHATML}
    return {"qwen3": made("a"), "nano": made("b", marker="nano"), "template": made("c", **counting)}


def prepared_of(renderer: LibraryRenderer, request: ChatRequest) -> PreparedRequest:
    engine = ScriptedEngine(lambda asked: Script(ids=[]))
    prompt_ids = renderer.render(request.messages, request.tools)
    return PreparedRequest(
        request=request,
        target=Target(
            project="games",
            name="player",
            base_model="tiny",
            step=3,
            adapter="games/player@3",
            engine=engine,
            renderer=renderer,
            max_context=10_000,
        ),
        stitched=Stitched(prompt_ids=prompt_ids, conversation=Conversation("tiny", request.messages)),
        tenant=None,
        rollout_id=None,
        max_tokens=5000,
        created_at=0.0,
        request_id="",
        constraint=constraint_of(request, renderer, prompt_ids),
    )


def asked_for(how: str, choice: str) -> tuple[ChatRequest, ResponsesRequest | None]:
    body: dict[str, Any] = {"model": "player", "stream": True}
    if how == "chat":
        body |= {"messages": HELLO, "tools": TOOLS, "tool_choice": choice}
        return read_chat_request(body, max_n=1), None
    if how == "anthropic":
        body |= {"messages": HELLO, "tools": ANTHROPIC_TOOLS, "max_tokens": 100}
        body["tool_choice"] = {"type": "any" if choice == "required" else choice}
        return read_chat_request(chat_body(body), max_n=1), None
    body |= {"input": "hi", "tools": RESPONSES_TOOLS, "tool_choice": choice}
    asked = read_responses_request(body, ResponseStore(max_bytes=1 << 20), None)
    return asked.chat, asked


def stream_of(
    prepared: PreparedRequest, writer: StreamWriter, pieces: list[list[int]], finish: Any
) -> tuple[bytes, StreamedChoice]:
    """The bytes of a stream whose ids come in these pieces."""
    choice = StreamedChoice(prepared, 0, 0)
    told = writer.write(StreamStarted([choice]))
    for number, ids in enumerate(pieces):
        last = number == len(pieces) - 1
        choice.completion.token_ids += ids
        choice.completion.logprobs += [0.0] * len(ids)
        choice.completion.finish_reason = finish if last else None
        told += writer.write(
            choice.delta_event(
                Delta(token_ids=ids, logprobs=[0.0] * len(ids), finish_reason=finish if last else None)
            )
        )
    return told + writer.write(choice.end()) + writer.close(), choice


def events_of(told: bytes) -> Iterator[dict[str, Any]]:
    for line in told.decode().split("\n"):
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def chat_calls(told: bytes) -> list[tuple[str, str, str]]:
    reply = read_completion(told, streamed=True)
    assert reply is not None
    calls = reply.choices[0].message.tool_calls or []
    return [(call.id, call.function.name, call.function.arguments) for call in calls]


def responses_calls(told: bytes) -> list[tuple[str, str, str]]:
    """By the deltas alone; that each item's end says the same is checked."""
    calls: list[list[str]] = []
    for event in events_of(told):
        kind, item = event["type"], event.get("item") or {}
        if kind == "response.output_item.added" and item["type"] == "function_call":
            calls.append([item["call_id"], item["name"], item["arguments"]])
        elif kind == "response.function_call_arguments.delta":
            calls[-1][2] += event["delta"]
        elif kind == "response.function_call_arguments.done":
            assert [event["name"], event["arguments"]] == calls[-1][1:]
    return [(call_id, name, arguments) for call_id, name, arguments in calls]


def anthropic_calls(told: bytes) -> list[tuple[str, str, str]]:
    calls: list[list[str]] = []
    opened, closed = [], []
    for event in events_of(told):
        block = event.get("content_block") or {}
        opened += [event["index"]] if event["type"] == "content_block_start" else []
        closed += [event["index"]] if event["type"] == "content_block_stop" else []
        if block.get("type") == "tool_use":
            calls.append([block["id"], block["name"], ""])
        elif event.get("delta", {}).get("type") == "input_json_delta":
            calls[-1][2] += event["delta"]["partial_json"]
    assert opened == closed == list(range(len(opened)))
    return [(call_id, name, arguments) for call_id, name, arguments in calls]


json_texts = st.recursive(
    st.one_of(st.integers(-99, 10**6), st.booleans(), st.none(), st.text(max_size=12), st.just(1e30)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
arguments_texts = st.builds(
    lambda members, plain, spaced: json.dumps(
        members, ensure_ascii=plain, separators=(" , ", " : ") if spaced else None
    ),
    st.dictionaries(st.text(max_size=6), json_texts, max_size=4),
    st.booleans(),
    st.booleans(),
).filter(lambda text: "\\ud" not in text)
calls_texts = st.builds(
    lambda head, arguments, tail: f"<tool_call>{head}{arguments}{tail}",
    st.sampled_from(
        [
            '\n{"name": "read", "arguments": ',
            '{"name":"read","arguments":',
            '\n{"name": "r\\u0065ad", "arguments": ',
            '\n{"arguments": ',
            '\n{"name": "", "arguments": ',
            '\n{"nam',
        ]
    ),
    st.one_of(arguments_texts, st.sampled_from(["{", '{"x": }', "[1]", '{"x": ]', "7"])),
    st.sampled_from(
        ["}\n</tool_call>", "}</tool_call>", "</tool_call>", '"', ', "name": "read"}</tool_call>']
    ),
)
replies = st.lists(
    st.one_of(
        calls_texts,
        st.text(max_size=8),
        st.sampled_from(["\n", "<think>", "</think>", "<tool_call>", "</tool_call>", "I look. ", "🙂"]),
    ),
    max_size=5,
).map("".join)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3", "nano", "template"])
@settings(max_examples=120, deadline=None)
@given(
    text=replies,
    choice=st.sampled_from(["required", "required", "auto"]),
    cut=st.none() | st.integers(0, 200),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9),
)
@example(text=LONG + "\n" + LONG, choice="required", cut=None, sizes=[1])
@example(text=LONG, choice="required", cut=60, sizes=[1])
@example(text="<think>" + LONG + "</think>" + LONG, choice="required", cut=None, sizes=[1])
@example(text="[" * 3000, choice="required", cut=None, sizes=[50])
def test_a_stream_s_calls_are_those_of_the_whole_reply(
    formats: dict[str, LibraryRenderer],
    kind: str,
    text: str,
    choice: str,
    cut: int | None,
    sizes: list[int],
) -> None:
    """However the reply goes, wherever it is cut off, in whatever pieces it comes, in every dialect."""
    renderer = formats[kind]
    ids = renderer.encode(text + "<|im_end|>") if cut is None else renderer.encode(text)[:cut]
    finish: FinishReason = "stop" if cut is None else "length"
    pieces = in_pieces(ids, sizes)
    for how, calls_of in (
        ("chat", chat_calls),
        ("responses", responses_calls),
        ("anthropic", anthropic_calls),
    ):
        request, asked = asked_for(how, choice)
        prepared = prepared_of(renderer, request)
        kept: list[Any] = []
        told, choice_told = stream_of(prepared, writer_of(how, prepared, asked, kept), pieces, finish)
        completion = choice_told.completion
        message = prepared.message(completion)
        calls = message.get("tool_calls", [])
        wanted = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
        assert calls_of(told) == wanted
        assert choice_told.message.get("tool_calls", []) == calls
        if calls and "<think>" not in text:
            assert choice_told.message["content"] == (message["content"] or "")
        if asked is not None:
            status = status_of_end(finish_reason(completion, message))
            output = output_of(asked, prepared, completion, message, status)
            assert function_calls(kept[0]["output"]) == function_calls(output)
        for block in blocks_of(message):
            assert block["type"] != "tool_use" or isinstance(block["input"], dict)
        if choice == "auto":
            assert all(isinstance(json.loads(arguments), dict) for _, _, arguments in wanted)


def in_pieces(ids: list[int], sizes: list[int]) -> list[list[int]]:
    pieces, rest = [], ids
    for size in itertools.cycle(sizes):
        pieces.append(rest[:size])
        rest = rest[size:]
        if not rest:
            return pieces
    raise AssertionError("a cycle has no end")


def writer_of(
    how: str, prepared: PreparedRequest, asked: ResponsesRequest | None, kept: list[Any]
) -> StreamWriter:
    if asked is not None:
        return ResponseEvents(asked, prepared, kept.append)
    return ChatChunks(prepared) if how == "chat" else MessageStream(prepared)


def function_calls(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in output if item["type"] == "function_call"]


@pytest.mark.parametrize("kind", ["qwen3", "nano", "template"])
def test_a_long_call_comes_in_many_pieces(formats: dict[str, LibraryRenderer], kind: str) -> None:
    renderer = formats[kind]
    text = '<tool_call>\n{"name": "read", "arguments": {"x": "' + "so it goes, " * 20 + '"}}\n</tool_call>'
    pieces = in_pieces(renderer.encode(text + "<|im_end|>"), [1])
    for how, kind_of in (
        ("chat", lambda event: "tool_calls" in (event["choices"] or [{"delta": {}}])[0]["delta"]),
        ("responses", lambda event: event["type"] == "response.function_call_arguments.delta"),
        ("anthropic", lambda event: event.get("delta", {}).get("type") == "input_json_delta"),
    ):
        request, asked = asked_for(how, "required")
        prepared = prepared_of(renderer, request)
        told, _ = stream_of(prepared, writer_of(how, prepared, asked, []), pieces, "stop")
        assert len([event for event in events_of(told) if kind_of(event)]) > 50


def test_a_chat_stream_names_the_call_first(formats: dict[str, LibraryRenderer]) -> None:
    renderer = formats["nano"]
    request, _ = asked_for("chat", "required")
    prepared = prepared_of(renderer, request)
    pieces = in_pieces(renderer.encode(LONG + "\n" + LONG + "<|im_end|>"), [1])
    told, choice = stream_of(prepared, ChatChunks(prepared), pieces, "stop")
    deltas = [event["choices"][0]["delta"] for event in events_of(told)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    for index in (0, 1):
        first, *others = [call for call in calls if call["index"] == index]
        assert first["id"] == choice.message["tool_calls"][index]["id"]
        assert (first["type"], first["function"]["name"]) == ("function", "read")
        assert all(
            set(one) == {"index", "function"} and set(one["function"]) == {"arguments"} for one in others
        )
        assert len(others) > 10
    assert [call["index"] for call in calls] == sorted(call["index"] for call in calls)


def test_a_free_reply_tells_no_call_that_may_become_text(formats: dict[str, LibraryRenderer]) -> None:
    renderer = formats["qwen3"]
    broken = LONG.replace("}}", "}")
    for text, calls in ((broken, 0), (LONG, 1), (LONG[:-20], 0)):
        request, _ = asked_for("chat", "auto")
        prepared = prepared_of(renderer, request)
        told, choice = stream_of(
            prepared, ChatChunks(prepared), in_pieces(renderer.encode(text + "<|im_end|>"), [1]), "stop"
        )
        assert len(chat_calls(told)) == calls
        message = prepared.message(choice.completion)
        assert choice.message == {**message, "content": message["content"] or ""}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_cut_off_is_told_as_far_as_it_came(live: Live, stream: bool) -> None:
    """In every dialect, with its own word for `max_tokens`; sent back, it is found again."""
    text = '<tool_call>\n{"name": "read", "arguments": {"x": "abc", "y": [1, 2'
    live.engine.answer = lambda request: Script(ids=live.renderer.encode(text + "<|im_end|>" * 9))
    room = len(live.renderer.encode(text))
    asked: dict[str, Any] = {"model": "player", "stream": stream, "tools": TOOLS, "tool_choice": "required"}
    headers = {"authorization": f"Bearer {KEY}", "x-art-rollout": "r"}
    async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=240) as client:
        told = await client.post(
            "/v1/chat/completions", json={**asked, "messages": HELLO, "max_tokens": room}
        )
        reply = read_completion(told.content, streamed=stream)
        assert reply is not None
        message = reply.choices[0].message
        assert message.tool_calls is not None
        assert message.tool_calls[0].function.arguments == '{"x": "abc", "y": [1, 2'
        assert (reply.choices[0].finish_reason, message.content) == ("length", None)
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "not JSON"}
        turns = [*HELLO, message.model_dump(exclude_none=True), result]
        again = await client.post("/v1/chat/completions", json={**asked, "messages": turns})
        assert again.status_code == 200, again.text
        first, second = live.engine.requests
        before = [*first.prompt_ids, *live.engine.emitted[first.request_id]]
        assert list(second.prompt_ids)[: len(before)] == before

        body = {**asked, "input": "hi", "tools": RESPONSES_TOOLS, "max_output_tokens": room}
        told = await client.post("/v1/responses", json=body)
        response = list(events_of(told.content))[-1]["response"] if stream else told.json()
        (item,) = response["output"]
        assert (response["status"], item["status"]) == ("incomplete", "incomplete")
        assert item["arguments"] == '{"x": "abc", "y": [1, 2'

        body = {**asked, "messages": HELLO, "tools": ANTHROPIC_TOOLS, "max_tokens": room}
        told = await client.post("/v1/messages", json={**body, "tool_choice": {"type": "any"}})
        if stream:
            assert [call[2] for call in anthropic_calls(told.content)] == ['{"x": "abc", "y": [1, 2']
            assert '"stop_reason":"max_tokens"' in told.text
        else:
            assert told.json()["content"][0]["input"] == {"x": "abc", "y": [1, 2]}
            assert told.json()["stop_reason"] == "max_tokens"


@pytest.mark.slow
async def test_the_sdk_s_helpers_read_a_call_as_it_grows(live: Live) -> None:
    live.engine.answer = lambda request: Script(ids=live.renderer.encode(LONG + "<|im_end|>"))
    asked: dict[str, Any] = {"model": "player", "tool_choice": "required"}
    grown = []
    async with live.client.chat.completions.stream(messages=HELLO, tools=TOOLS, **asked) as stream:
        async for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                grown.append(event.arguments)
    assert len(grown) > 10 and json.loads(grown[-1])["x"] == 'héllo 🙂 } " and so on'
    async with live.client.responses.stream(input="hi", tools=RESPONSES_TOOLS, **asked) as events:
        kinds = [event.type async for event in events]
        final = await events.get_final_response()
    assert kinds.count("response.function_call_arguments.delta") > 10
    assert json.loads(final.output[0].arguments) == json.loads(grown[-1])


async def test_with_a_stop_string_a_call_comes_whole(live: Live) -> None:
    """The string may stand in the arguments: what comes behind it is no part of the reply."""
    live.engine.answer = lambda request: Script(ids=live.renderer.encode(LONG + "<|im_end|>"))
    stream = await live.client.chat.completions.create(
        model="player", messages=HELLO, tools=TOOLS, tool_choice="required", stop=["zzz"], stream=True
    )
    deltas = [chunk.choices[0].delta.tool_calls async for chunk in stream if chunk.choices]
    assert len([calls for calls in deltas if calls]) == 1

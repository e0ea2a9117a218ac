"""Streams are put together as openai's own accumulator does it, and what is no completion is told apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from art.recording.captured_reply import read_completion

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def chunk(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**HEAD, "choices": list(choices), **more}


def part(index: int, finish: str | None = None, logprobs: Any = None, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}


def sent(chunks: list[dict[str, Any]], *, gap: str = " ", end: str = "\n\n") -> bytes:
    events = [json.dumps(item, ensure_ascii=False) for item in chunks]
    return "".join(f"data:{gap}{event}{end}" for event in [*events, "[DONE]"]).encode()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@st.composite
def streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Chunks of one to three choices that overlap, each with text and calls in pieces."""
    queues: list[list[dict[str, Any]]] = []
    openings = []
    for index in range(draw(st.integers(1, 3))):
        openings.append(part(index, role="assistant", content=draw(texts)))
        parts = []
        for _ in range(draw(st.integers(0, 4))):
            entry = {"token": draw(texts), "logprob": -1.0, "bytes": [1], "top_logprobs": []}
            logprobs = {"content": [entry], "refusal": None} if draw(st.booleans()) else None
            parts.append(part(index, logprobs=logprobs, content=draw(texts)))
        for number in range(draw(st.integers(0, 2))):
            call = {"index": number, "id": f"call{number}", "type": "function"}
            first = {**call, "function": {"name": "f", "arguments": ""}}
            parts.append(part(index, tool_calls=[first]))
            for _ in range(draw(st.integers(0, 3))):
                piece = {"index": number, "function": {"arguments": draw(texts)}}
                parts.append(part(index, tool_calls=[piece]))
        queues.append([*parts, part(index, finish="stop")])
    chunks = [chunk(*openings)]  # openai's accumulator wants the first choice first
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        chunks.append(chunk(queue.pop(0)))
    return chunks


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(streams(), st.sampled_from([" ", ""]), st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]))
def test_streams_add_up_as_with_openai(chunks: list[dict[str, Any]], gap: str, end: str) -> None:
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for item in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(item))
    expected = {choice.index: choice for choice in state.current_completion_snapshot.choices}
    completion = read_completion(sent(chunks, gap=gap, end=end), streamed=True)
    assert completion is not None
    assert [choice.index for choice in completion.choices] == sorted(expected)
    for choice in completion.choices:
        theirs = expected[choice.index]
        calls = [
            (call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()
        ]
        assert calls == [
            (call.id, call.function.name, call.function.arguments) for call in theirs.message.tool_calls or ()
        ]
        assert (choice.message.content or "") == (theirs.message.content or "")
        assert choice.finish_reason == theirs.finish_reason
        ours = [entry.token for entry in (choice.logprobs and choice.logprobs.content) or ()]
        assert ours == [entry.token for entry in (theirs.logprobs and theirs.logprobs.content) or ()]


def test_fields_of_other_servers_survive() -> None:
    chunks = [
        chunk(part(0, role="assistant", reasoning_content="let "), system_fingerprint="f"),
        chunk({**part(0, role="assistant", reasoning_content="me"), "sample_id": "s1", "stop_reason": None}),
        chunk({**part(0, finish="stop", content="hi"), "sample_id": "s1", "stop_reason": 7}),
        chunk(usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
    ]
    completion = read_completion(sent(chunks), streamed=True)
    assert completion is not None and completion.usage is not None
    (choice,) = completion.choices
    assert choice.message.model_extra == {"reasoning_content": "let me"}
    assert choice.model_extra == {"sample_id": "s1", "stop_reason": 7}
    assert (completion.usage.total_tokens, completion.system_fingerprint) == (3, "f")


def test_a_stream_that_breaks_off_in_the_middle_of_an_event() -> None:
    whole = sent([chunk(part(0, role="assistant", content="he")), chunk(part(0, content="llo"))])
    completion = read_completion(whole[: whole.index(b"llo")], streamed=True)
    assert completion is not None
    assert (completion.choices[0].message.content, completion.choices[0].finish_reason) == ("he", None)


def test_a_server_that_says_no_reason_but_done_has_said_all() -> None:
    """It also repeats its chunks, names of functions included, and gives no type but octets."""
    call = {"id": "c1", "type": "function", "index": 0, "function": {"name": "look", "arguments": "{"}}
    rest = {"index": 0, "function": {"name": None, "arguments": "}"}}
    parts = [
        part(0, role="assistant", content=""),
        part(0, tool_calls=[call]),
        part(0, tool_calls=[call]),
        part(0, tool_calls=[rest]),
    ]
    body = sent([chunk(item) for item in parts])
    completion = read_completion(body, streamed=True)
    assert completion is not None
    (choice,) = completion.choices
    assert choice.finish_reason == "stop" and choice.message.content is None
    assert [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()] == [
        ("c1", "look", "{{}")
    ]
    early = read_completion(body.removesuffix(b"data: [DONE]\n\n"), streamed=True)
    assert early is not None and early.choices[0].finish_reason is None
    broken = [*[chunk(item) for item in parts], {"error": {"message": "the engine died"}}]
    failed = read_completion(sent(broken), streamed=True)
    assert failed is not None and failed.choices[0].finish_reason is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing",
        b'{"error": {"message": "no"}}',
        b'{"choices": []}',
        b'{"choices": "x"}',
        b"[1]",
        b'{"choices',
    ],
)
def test_what_is_no_completion(body: bytes) -> None:
    assert read_completion(body, streamed=False) is None
    assert read_completion(b"data: " + body + b"\n\n", streamed=True) is None


def test_a_whole_reply_that_leaves_fields_out() -> None:
    body = b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}'
    completion = read_completion(body, streamed=False)
    assert completion is not None and completion.choices[0].message.content == "hi"

"""Streams of chat completions, put together again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from art.errors import ServerError
from art.openai import (
    IncompleteChatCompletionStreamError,
    consume_chat_completion_stream,
    consume_sync_chat_completion_stream,
    finalize_chat_completion,
    init_chat_completion,
    update_chat_completion,
)


def chunk(delta: dict[str, Any] | None = None, index: int = 0, **choice: Any) -> ChatCompletionChunk:
    fields = {"index": index, "delta": delta or {}, "finish_reason": None, **choice}
    return whole_chunk(choices=[fields])


def whole_chunk(**fields: Any) -> ChatCompletionChunk:
    return ChatCompletionChunk.model_validate(
        {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [], **fields}
    )


def token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}


class Stream:
    """A stream that remembers whether it was closed."""

    def __init__(self, chunks: list[ChatCompletionChunk]) -> None:
        self.chunks, self.closed = chunks, False

    def __iter__(self) -> Iterator[ChatCompletionChunk]:
        return iter(self.chunks)

    async def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        for item in self.chunks:
            yield item


class SyncStream(Stream):
    def close(self) -> None:
        self.closed = True


class AsyncStream(Stream):
    async def close(self) -> None:
        self.closed = True


TEXT = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}, logprobs={"content": [token("Hel")], "refusal": None}),
    chunk({"content": "lo"}, logprobs={"content": [token("lo")], "refusal": None}),
    chunk({}, finish_reason="stop", art_sample="s1"),
    whole_chunk(
        usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, system_fingerprint="f"
    ),
]


async def test_lists_of_a_choice_are_put_together() -> None:
    parts = [
        chunk({"content": "Hel"}, token_ids=[5, 6]),
        chunk({"content": "lo"}, token_ids=[7]),
        chunk({}, finish_reason="stop", stop_reason="</s>", token_ids=[2]),
    ]
    completion = await consume_chat_completion_stream(AsyncStream(parts))
    assert completion.choices[0].model_extra == {"token_ids": [5, 6, 7, 2], "stop_reason": "</s>"}
    again = await consume_chat_completion_stream(AsyncStream(parts))
    assert again == completion, "the chunks are as they were"


async def test_text_logprobs_usage_and_fields_of_the_server() -> None:
    completion = await consume_chat_completion_stream(AsyncStream(TEXT))
    (choice,) = completion.choices
    assert (completion.id, completion.created, completion.model) == ("c1", 7, "m")
    assert completion.object == "chat.completion" and completion.system_fingerprint == "f"
    assert choice.message.role == "assistant" and choice.message.content == "Hello"
    assert choice.finish_reason == "stop" and choice.model_extra == {"art_sample": "s1"}
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert [entry.token for entry in choice.logprobs.content] == ["Hel", "lo"]
    assert completion.usage is not None and completion.usage.total_tokens == 5


async def test_the_synchronous_way_gives_the_same() -> None:
    assert consume_sync_chat_completion_stream(SyncStream(TEXT)) == await consume_chat_completion_stream(
        AsyncStream(TEXT)
    )


async def test_tool_calls_by_index_reasoning_refusal_and_the_older_call() -> None:
    stream = AsyncStream(
        [
            chunk({"reasoning": "let me "}),
            chunk({"reasoning": "see"}),
            chunk({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "two", "arguments": ""}}]}),
            chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "one", "arguments": "{}"}}]}),
            chunk({"tool_calls": [{"index": 1, "function": {"name": "two", "arguments": '{"x"'}}]}),
            chunk({"tool_calls": [{"index": 1, "function": {"arguments": ": 1}"}}]}),
            chunk({"refusal": "I "}, logprobs={"content": None, "refusal": [token("I ")]}),
            chunk({"refusal": "won't"}),
            chunk({"function_call": {"name": "old", "arguments": "{"}}),
            chunk({"function_call": {"arguments": "}"}}, finish_reason="tool_calls"),
        ]
    )
    message = (await consume_chat_completion_stream(stream)).choices[0].message
    assert message.content is None and message.refusal == "I won't"
    assert message.model_extra == {"reasoning": "let me see"}
    assert message.function_call is not None and message.function_call.arguments == "{}"
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]  # type: ignore[union-attr]
    assert calls == [("a", "one", "{}"), ("b", "two", '{"x": 1}')]


async def test_several_choices_come_in_their_order() -> None:
    stream = AsyncStream(
        [
            chunk({"content": "b"}, 1),
            chunk({"content": "a"}, 0, finish_reason="stop"),
            chunk({}, 1, finish_reason="length"),
        ]
    )
    choices = (await consume_chat_completion_stream(stream)).choices
    assert [(choice.index, choice.message.content) for choice in choices] == [(0, "a"), (1, "b")]
    assert [choice.finish_reason for choice in choices] == ["stop", "length"]


async def test_on_chunk_sees_each_chunk_and_may_stop() -> None:
    seen: list[Any] = []

    def stop_at_hel(piece: ChatCompletionChunk) -> None:
        seen.append(piece)
        if len(seen) == 2:
            raise StopIteration

    stream = AsyncStream(TEXT)
    completion = await consume_chat_completion_stream(stream, on_chunk=stop_at_hel)
    assert seen == TEXT[:2] and stream.closed
    assert completion.choices[0].message.content == "Hel" and completion.choices[0].finish_reason is None

    sync = SyncStream(TEXT)
    texts: list[Any] = []

    def with_completion(_: ChatCompletionChunk, so_far: Any) -> None:
        texts.append(so_far.choices[0].message.content)
        if texts[-1] == "Hello":
            raise StopIteration

    consume_sync_chat_completion_stream(sync, with_completion)
    assert texts == ["", "Hel", "Hello"] and sync.closed


async def test_other_errors_of_on_chunk_are_the_callers() -> None:
    def fail(_: ChatCompletionChunk) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await consume_chat_completion_stream(AsyncStream(TEXT), on_chunk=fail)


async def test_a_stream_without_chunks_is_an_error() -> None:
    with pytest.raises(ServerError, match="before its first chunk"):
        await consume_chat_completion_stream(AsyncStream([]))


async def test_a_stream_that_is_cut_off_is_an_error() -> None:
    assert issubclass(IncompleteChatCompletionStreamError, ValueError)
    for cut in (TEXT[:3], TEXT[-1:]):
        with pytest.raises(IncompleteChatCompletionStreamError, match=r"`finish_reason`.*cut off"):
            await consume_chat_completion_stream(AsyncStream(cut))
    with pytest.raises(IncompleteChatCompletionStreamError, match="`finish_reason`"):
        consume_sync_chat_completion_stream(SyncStream(TEXT[:1]))


async def test_usage_can_be_required() -> None:
    without = await consume_chat_completion_stream(AsyncStream(TEXT[:-1]))
    assert without.usage is None and finalize_chat_completion(without) is without
    with pytest.raises(IncompleteChatCompletionStreamError, match="include_usage"):
        await consume_chat_completion_stream(AsyncStream(TEXT[:-1]), require_usage=True)
    with_usage = consume_sync_chat_completion_stream(SyncStream(TEXT), require_usage=True)
    assert with_usage.usage is not None


def test_step_by_step() -> None:
    completion = init_chat_completion(TEXT[1])
    assert completion.choices == []
    for piece in TEXT:
        update_chat_completion(completion, piece)
    assert completion == consume_sync_chat_completion_stream(SyncStream(TEXT))

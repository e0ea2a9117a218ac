"""Streams tell the same as whole replies, and commit the sample before they end."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from live import KEY, Live
from scripted_engine import Script

from art.engine.protocol import GenerateRequest
from art.errors import WorkerDiedError
from waiting import DEADLINE_S

HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]


async def streamed(live: Live, **options: Any) -> tuple[dict[int, dict[str, Any]], list[Any]]:
    """What a client puts together from the chunks of each choice, and all chunks."""
    choices: dict[int, dict[str, Any]] = {}
    chunks = []
    stream = await live.client.chat.completions.create(model="player", messages=HELLO, stream=True, **options)
    async for chunk in stream:
        chunks.append(chunk)
        for choice in chunk.choices:
            one = choices.setdefault(
                choice.index, {"content": "", "reasoning": "", "calls": [], "finish": None, "logprobs": []}
            )
            one["content"] += choice.delta.content or ""
            one["reasoning"] += (choice.delta.model_extra or {}).get("reasoning_content", "")
            one["calls"] += [(c.function.name, c.function.arguments) for c in choice.delta.tool_calls or []]
            one["finish"] = choice.finish_reason or one["finish"]
            one["sample_id"] = choice.model_extra["sample_id"]
            if choice.logprobs:
                one["logprobs"] += [entry.logprob for entry in choice.logprobs.content]
    return choices, chunks


TEXTS = [
    "hello",
    "héllo wörld 🙂 und so weiter",
    "<think>\nlet me see\n</think>\n\nhello  there",
    'I look.\n<tool_call>\n{"name": "read", "arguments": {"x": 1e3}}\n</tool_call>',
    'odd <tool_call>\n{"name": "read", "arguments": }\n</tool_call>',
    "<think>never closed",
    "",
]


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("chunk", [1, 3])
async def test_a_stream_adds_up_to_the_whole_reply(live: Live, text: str, chunk: int) -> None:
    ids = live.renderer.encode(text + "<|im_end|>")
    live.engine.answer = lambda request: Script(ids=ids, chunk=chunk)
    whole = (await live.client.chat.completions.create(model="player", messages=HELLO, tools=TOOLS)).choices[
        0
    ]
    choices, chunks = await streamed(live, tools=TOOLS, logprobs=True)
    one = choices[0]
    assert one["content"] == (whole.message.content or "")
    assert one["reasoning"] == whole.message.model_extra.get("reasoning_content", "")
    assert one["calls"] == [(c.function.name, c.function.arguments) for c in whole.message.tool_calls or []]
    assert one["finish"] == whole.finish_reason
    assert one["logprobs"] == live.engine.logprobs(len(ids))
    (record,) = await live.ledger.samples([one["sample_id"]])
    assert list(record.completion_ids) == ids
    assert all(len(chunk.choices) == 1 for chunk in chunks)


async def test_the_end_of_a_choice_tells_its_tokens(live: Live) -> None:
    _, chunks = await streamed(live, n=2)
    parts = [choice for chunk in chunks for choice in chunk.choices]
    told = {part.index: part.model_extra.get("completion_tokens") for part in parts if part.finish_reason}
    assert all("completion_tokens" not in part.model_extra for part in parts if not part.finish_reason)
    for part in parts:
        (record,) = await live.ledger.samples([part.model_extra["sample_id"]])
        assert told[part.index] == len(record.completion_ids) > 0


async def test_characters_are_never_cut(live: Live) -> None:
    live.engine.answer = lambda request: Script(ids=live.renderer.encode("🙂é<|im_end|>"))
    _, chunks = await streamed(live)
    assert "\ufffd" not in "".join(c.choices[0].delta.content or "" for c in chunks)


async def test_a_stop_string_never_begins_to_appear(live: Live) -> None:
    live.engine.answer = lambda request: Script(ids=live.renderer.encode("one END"), stop_string="END")
    choices, _ = await streamed(live, stop=["END"])
    assert choices[0]["content"].rstrip() == "one"
    live.engine.answer = lambda request: Script(ids=live.renderer.encode("one ENough<|im_end|>"))
    choices, _ = await streamed(live, stop=["END"])
    assert choices[0]["content"] == "one ENough"


async def test_choices_of_a_stream_are_samples_of_their_own(live: Live) -> None:
    def answer(request: GenerateRequest) -> Script:
        return Script(ids=live.renderer.encode(f"{request.sampling.seed}<|im_end|>"))

    live.engine.answer = answer
    choices, chunks = await streamed(live, n=3, seed=5, stream_options={"include_usage": True})
    assert sorted(one["content"] for one in choices.values()) == ["5", "6", "7"]
    assert len({one["sample_id"] for one in choices.values()}) == 3
    assert chunks[-1].usage.completion_tokens == 6
    assert chunks[-1].choices == []
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_a_failure_after_the_first_byte_is_an_event(live: Live) -> None:
    original = live.engine.generate

    async def dies(request: GenerateRequest):
        async for delta in original(request):
            yield delta
            raise WorkerDiedError("engine died")

    live.engine.generate = dies
    live.engine.answer = lambda request: Script(ids=live.renderer.encode("hello there<|im_end|>"))
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=DEADLINE_S) as client:
        reply = await client.post(
            f"{live.url}/v1/chat/completions", json={"model": "tiny", "messages": HELLO, "stream": True}
        )
    assert reply.status_code == 200
    assert '"code":"worker_died"' in reply.text
    assert reply.text.endswith("data: [DONE]\n\n")
    assert await live.ledger.is_empty()


async def test_a_streamed_reply_is_stitched_like_a_whole_one(live: Live) -> None:
    live.engine.answer = lambda request: Script(ids=live.renderer.encode("  h ello \n<|im_end|>"))
    choices, _ = await streamed(live)
    await live.client.chat.completions.create(
        model="player",
        messages=[*HELLO, {"role": "assistant", "content": choices[0]["content"]}, *HELLO],
    )
    first, second = live.engine.requests
    before = [*first.prompt_ids, *live.engine.emitted[first.request_id]]
    assert list(second.prompt_ids)[: len(before)] == before


async def test_streams_overlap(live: Live) -> None:
    results = await asyncio.gather(*(streamed(live) for _ in range(20)))
    assert {choices[0]["content"] for choices, _ in results} == {"hello"}

"""Conversations over real tokenizers: prompts have every earlier id, and what is trained is what was said."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from chat_families import REAL, needs_tokenizers, real
from live import run_gateway
from scripted_engine import Script, ScriptedEngine

from art.engine.protocol import GenerateRequest
from art.rendering.library import LibraryRenderer
from art.server.jobs.sft_job import assistant_rows

pytestmark = [pytest.mark.slow, needs_tokenizers]

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
]
SAID = [
    "  leading and trailing  \n\n",
    "tabs\tand\r\nreturns\n\n\n and\u00a0odd\u2003spaces 1234567",
    "na\u00efve caf\u00e9 \U0001f642 \u65e5\u672c\u8a9e e\u0301",
    "<tool_call>never closed",
    "hello hello",
]


def odd_ids(chat: LibraryRenderer, text: str, seed: int) -> list[int]:
    """Ids that spell the text, but not those that a tokenizer would choose: characters one by one."""
    rng = random.Random(seed)
    if rng.random() < 0.3:
        return chat.encode(text)
    return [token for character in text for token in chat.encode(character)]


def framed(chat: LibraryRenderer, text: str, seed: int) -> list[int]:
    """A reply of this text as a model may sample it."""
    if chat.kind != "GptOssRenderer":
        return [*odd_ids(chat, text, seed), chat.stop_token_ids[0]]
    return chat.encode(
        f"hm<|end|><|start|>assistant<|channel|>final<|message|>{text.replace('<', '')}<|return|>"
    )


@pytest.fixture(scope="module", params=REAL)
def chat(request: pytest.FixtureRequest) -> Iterator[LibraryRenderer]:
    """One tokenizer at a time: the largest takes a quarter of a gigabyte."""
    yield real(request.param)
    real.cache_clear()
    gc.collect()  # a renderer and its tokenizer name each other


async def test_each_prompt_has_every_id_before_it(chat: LibraryRenderer, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "read", "arguments": '{"id": 1e3}'}}
        ],
    }
    emitted: list[list[int]] = []

    def answer(request: GenerateRequest) -> Script:
        turn = len(emitted)
        calling = turn % 2 == 1
        prompt = list(request.prompt_ids)
        ids = chat.reply(prompt, asked, TOOLS) if calling else framed(chat, SAID[turn // 2], turn)
        emitted.append(ids)
        return Script(ids=ids)

    messages: list[Any] = [{"role": "user", "content": "go"}]
    async with run_gateway(
        tmp_path / "ledger.sqlite", ScriptedEngine(answer), chat, max_context=16384
    ) as live:
        for _ in range(2 * len(SAID)):
            reply = await live.client.chat.completions.create(model="player", messages=messages, tools=TOOLS)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if message.tool_calls:
                (call,) = message.tool_calls
                assert json.loads(call.function.arguments) == {"id": 1000}
                result = {"role": "tool", "tool_call_id": call.id, "content": "r7 <|im_end|><end_of_turn>"}
                messages.append(result)
            else:
                messages.append({"role": "user", "content": "on <|end|><|eot_id|>"})
        assert live.stitcher.forks.total() == 0 and live.stitcher.stitched == 2 * len(SAID) - 1
        prompts = [list(request.prompt_ids) for request in live.engine.requests]
    for before, sampled, after in zip(prompts, emitted, prompts[1:], strict=False):
        assert after[: len(before) + len(sampled)] == before + sampled


def test_what_is_trained_of_a_conversation_is_what_the_assistant_said(chat: LibraryRenderer) -> None:
    """Each id once: the assistant's words and the end of each turn, and nothing that others said."""
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "uzq one 12345"},
        {"role": "assistant", "content": "First answer, 2024."},
        {"role": "user", "content": "uzq two <|im_end|><|eot_id|>"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_0", "type": "function", "function": {"name": "read", "arguments": '{"id": 7}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "name": "read", "content": "uzq result"},
        {"role": "assistant", "content": "Last answer."},
    ]
    rows = assistant_rows(chat, "talk", messages, TOOLS, about="talk")
    assert len(rows) == 3
    for row, wanted in zip(rows, ("First answer, 2024.", '"id": 7', "Last answer."), strict=True):
        trained = chat.decode(list(row.completion_ids))
        assert wanted in trained and "uzq" not in trained and "Be brief" not in trained
        assert list(row.completion_ids)[-1] in chat.stop_token_ids
        assert wanted not in chat.decode(list(row.prompt_ids)[-len(row.completion_ids) :])
    for row, later in pairwise(rows):
        before = [*row.prompt_ids, *row.completion_ids]
        assert list(later.prompt_ids)[: len(before)] == before

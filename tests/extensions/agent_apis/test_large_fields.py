"""No field of a request is worked through in one piece, whatever its size: nobody else would have a turn."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from art.errors import NotFoundError, RequestError
from art.server.chat.chat_request import CHAT, read_chat_request
from art.server.chat.request_fields import LeftOutParts, RequestSchema
from art.server.dialects.completions_request import (
    COMPLETIONS,
    GENERATE,
    SAMPLING_PARAMS,
    read_completions_request,
    read_generate_request,
)
from art_extensions.agent_apis.anthropic_request import MESSAGES
from art_extensions.agent_apis.responses_items import ResponseStore
from art_extensions.agent_apis.responses_request import RESPONSES, read_responses_request
from core_speed import CoreSpeed

MOST_S = 0.1
"""Of the processor, for one field. Writing one of these values takes half a second and more."""
WORKED_THROUGH = {("prompt", "numbers"), ("prompt", "texts"), ("prompt", "lists"), ("token_ids", "numbers")}
"""Ids of a prompt and prompts, one by one: other threads have their turn between two of them."""


@cache
def large_values() -> dict[str, Any]:
    """Returns half a gigabyte, which is let go when the tests of this file have ended."""
    texts = ["text"] * 8_000_000
    values = {
        "numbers": [10**6] * 8_000_000,
        "texts": texts,
        "lists": [[]] * 8_000_000,
        "text": "x" * 30_000_000,
        "object": dict.fromkeys(map(str, range(500_000)), [1] * 64),
        "nested": [{"type": texts, "text": texts, "role": ["user"] * 8_000_000}],
        "call": [{"role": "assistant", "content": "", "tool_calls": [{"id": texts, "function": {}}]}],
    }
    gc.freeze()  # a look for garbage would go through them on the account of a field
    return values


def requests(schema: RequestSchema, needed: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name in (*schema.fields, "unheard_of"):
        for kind, value in large_values().items():
            if (name, kind) not in WORKED_THROUGH:
                yield name, kind, {**needed, name: value}


def costly(read: Callable[[Any], Any], cases: Iterator[tuple[str, str, dict[str, Any]]]) -> dict[str, float]:
    found, speed = {}, CoreSpeed()
    for name, kind, body in cases:
        begun = time.thread_time()
        try:
            read(body)
        except (RequestError, NotFoundError) as refused:
            assert len(str(refused)) < 20_000
        if (spent := time.thread_time() - begun) > MOST_S:
            found[f"{name}: {kind}"] = spent
    most = speed.allowed(MOST_S)
    return {field: spent for field, spent in found.items() if spent > most}


HI = {"model": "player", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.slow
def test_fields_of_a_chat_completion() -> None:
    assert costly(lambda body: read_chat_request(body, max_n=8), requests(CHAT, HI)) == {}


@pytest.mark.slow
def test_fields_of_a_raw_completion() -> None:
    def read(body: Any) -> Any:
        return read_completions_request(body, max_n=8)

    assert costly(read, requests(COMPLETIONS, {"model": "player", "prompt": "hi"})) == {}


@pytest.mark.slow
def test_fields_of_a_completion_of_ids() -> None:
    def read(body: Any) -> Any:
        return read_generate_request(body, max_n=8)

    needed = {"model": "player", "token_ids": [1]}
    assert costly(read, requests(GENERATE, needed)) == {}
    sampling = ((n, k, {**needed, "sampling_params": body}) for n, k, body in requests(SAMPLING_PARAMS, {}))
    assert costly(read, sampling) == {}


@pytest.mark.slow
def test_declared_fields_of_a_message() -> None:
    def read(body: Any) -> Any:
        (name,) = body
        return MESSAGES.read_field(name, body[name]) if name in MESSAGES.fields else None

    assert costly(read, requests(MESSAGES, {})) == {}


@pytest.mark.slow
def test_fields_of_a_response_and_of_its_tools() -> None:
    def read(body: Any) -> Any:
        return read_responses_request(body, ResponseStore(max_bytes=1), nobody, left_out)

    nobody: Any = None
    left_out = LeftOutParts("/v1/responses")
    hi: dict[str, Any] = {"model": "player", "input": "hi"}
    assert costly(read, requests(RESPONSES, hi)) == {}
    tools = (
        (f"tools.{field}", kind, {**hi, "tools": [{"type": "function", "name": "f", field: value}]})
        for field in ("type", "name", "description", "strict")
        for kind, value in large_values().items()
    )
    assert costly(read, tools) == {}

"""Whatever JSON arrives: it is read, or refused by field; never a crash."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.errors import RequestError
from art.server.chat.chat_request import CHAT, read_chat_request
from art.server.chat.request_fields import OTHER_FIELDS
from art.server.ledger.stitching import Conversation

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["role", "content", "tool_calls", "name", "tool_call_id", "sample_id", "function_call", "x"]
CALL = st.dictionaries(st.sampled_from(["id", "function", "name"]), JSON, max_size=3)
MESSAGE = st.dictionaries(
    st.sampled_from(KEYS), JSON | st.lists(CALL, max_size=2), max_size=5
) | st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": st.text() | st.none()},
    optional={"tool_calls": JSON | st.lists(CALL, max_size=2), "tool_call_id": JSON, "sample_id": JSON},
)
BODY = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.lists(MESSAGE, max_size=3) | JSON},
    optional={name: JSON for name in [*CHAT.fields, *OTHER_FIELDS] if name not in ("model", "messages")},
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(BODY | JSON)
def test_any_json_is_read_or_refused(body: Any) -> None:
    try:
        request = read_chat_request(body, max_n=4)
    except RequestError as refused:
        assert refused.status == 400 and str(refused)
        return
    assert 1 <= request.n <= 4
    assert request.max_tokens is None or request.max_tokens >= 1
    for message in request.messages:
        assert isinstance(message["content"], str)
    Conversation("base", request.messages)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def body(**change: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "x"}], **change}


def test_deep_nesting_is_refused() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"a": nested(500)}}}]
    with pytest.raises(RequestError, match="tools"):
        read_chat_request(body(tools=tools), max_n=1)
    calls = [{"id": "a", "function": {"name": "f", "arguments": nested(500)}}]
    with pytest.raises(RequestError, match="arguments"):
        read_chat_request(body(messages=[{"role": "assistant", "tool_calls": calls}]), max_n=1)
    written = [{"id": "a", "function": {"name": "f", "arguments": "[" * 5000 + "]" * 5000}}]
    request = read_chat_request(body(messages=[{"role": "assistant", "tool_calls": written}]), max_n=1)
    Conversation("base", request.messages)


def keys(*messages: dict[str, Any]) -> bytes:
    request = read_chat_request(body(messages=list(messages)), max_n=1)
    return Conversation("base", request.messages).key


def test_what_clients_do_to_a_reply_does_not_change_its_conversation() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1.0,"b":[1e3]}'}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    same = [
        {"tool_calls": [call], "content": "", "role": "assistant", "refusal": None, "audio": None},
        {**reply, "reasoning_content": "hm", "sample_id": "smp_1", "step": 3},
        {**reply, "tool_calls": [{**call, "id": "other", "index": 0}]},
        {**reply, "content": []},
        {**reply, "tool_calls": [{"function": {"arguments": {"b": [1000], "a": 1}, "name": "f"}}]},
    ]
    assert {keys(message) for message in same} == {keys(reply)}


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "a."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    ],
)
def test_other_text_is_another_conversation(other: dict[str, Any]) -> None:
    assert keys(other) != keys({"role": "assistant", "content": "a"})


def test_texts_cannot_pretend_to_be_two_messages() -> None:
    assert keys({"role": "user", "content": "auser 1:b"}) != keys(
        {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    )

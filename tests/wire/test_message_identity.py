"""The client that captures and the server that stitches agree on when two messages are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.server.ledger.stitching import Conversation
from art.wire.message_identity import message_key, prefix_keys

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def calling(arguments: str, content: str | None = "") -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def same_for_client(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return message_key(one) == message_key(two)


def same_for_server(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return Conversation("base", [one]).key == Conversation("base", [two]).key


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (calling('{"n": 1000}'), calling('{"n": 1000.0}'), True),
        (calling('{"n": 1000}'), calling('{"n":1e3}'), True),
        (calling('{"n": 1000}'), calling('{"n": 1001}'), False),
        (calling('{"a": 1, "b": 2}'), calling('{"b":2,"a":1}'), True),
        (calling("not json"), calling("not  json"), False),
        (calling("{}", None), calling("{}", ""), True),
        ({"role": "assistant", "content": "hi "}, {"role": "assistant", "content": "hi"}, True),
        ({"role": "user", "content": "hi "}, {"role": "user", "content": "hi"}, False),
        ({"role": "assistant", "content": "hi"}, {"role": "assistant", "content": "hi!"}, False),
        ({"role": "assistant", "content": "hi"}, {"role": "user", "content": "hi"}, False),
        (calling('{"n": 1' + "0" * 40 + "}"), calling('{"n": 1' + "0" * 40 + "}"), True),
        (calling('{"n": 9007199254740993}'), calling('{"n": 9007199254740992}'), False),
        (calling("[" * 3000 + "]" * 3000), calling("[" * 3000 + "]" * 3000), True),
        ({"role": "user", "content": "\ud800"}, {"role": "user", "content": "\ud801"}, False),
    ],
)
def test_client_and_server_agree(one: dict[str, Any], two: dict[str, Any], same: bool) -> None:
    assert same_for_client(one, two) is same
    assert same_for_server(one, two) is same


@pytest.mark.slow
@given(value=st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_arguments_written_again_are_the_same(value: dict[str, Any]) -> None:
    one, two = (
        calling(json.dumps(value)),
        calling(json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False)),
    )
    assert same_for_client(one, two)
    assert same_for_server(one, two)


def test_a_conversation_has_the_keys_of_all_that_it_continues() -> None:
    asked = [{"role": "user", "content": "hi"}, calling('{"n": 1}'), {"role": "tool", "content": "2"}]
    again = [asked[0], calling('{"n":1.0}', None), *asked[2:], {"role": "user", "content": "and?"}]
    assert prefix_keys(again)[: len(asked) + 1] == prefix_keys(asked)
    assert prefix_keys(asked, b"tools")[-1] not in prefix_keys(again)
    assert prefix_keys(asked[2:], prefix_keys(asked[:2])[-1])[-1] == prefix_keys(asked)[-1]
    assert len({*prefix_keys(again), *prefix_keys([*asked[1:], asked[0]])}) == 5 + 3

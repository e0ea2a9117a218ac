"""Whatever a model writes under the grammar of its format's calls, `parse` reads as calls that fit."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from chat_families import family, generic, of_own, template
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art.engine.constraints import Grammars, read_vocabulary
from art.engine.nano_models import resolve
from art.engine.protocol import Constraint
from art.errors import RequestError
from art.rendering.chat_renderer import Parsed
from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer

pytestmark = pytest.mark.slow

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
JSON_FORMATS = (
    "nano",
    "qwen3",
    "template",
    "generic",
    "generic-tags",
    "llama-3",
    "deepseek-v3",
    "deepseek-r1",
    "kimi-k2",
)
TAGGED = ("qwen3.5", "qwen3.6", "prime-qwen3", "nemotron-3", "glm-4.5", "glm-5", "minimax-m2")
"""Formats that write each argument alone, texts without quotes."""
FORMATS = (*JSON_FORMATS, *TAGGED)
ASK = [{"role": "user", "content": "hello"}]
MOST = 8000
"""Calls of some hundred ids each: after one, another is as likely as the end."""


@lru_cache
def made(name: str) -> tuple[LibraryRenderer, Grammars]:
    if name == "nano":
        folder = str(resolve("art/nano-tools"))
        return create_chat_renderer(folder), Grammars(folder)
    silent = {"enable_thinking": False} if name in ("glm-4.5", "glm-5") else {}
    if name.startswith("generic"):
        chat = generic(CHATML, tool_markers=name == "generic-tags")
    else:
        chat = template(CHATML) if name == "template" else of_own(name, **silent)
    return chat, Grammars("", load=lambda _: read_vocabulary(str(saved(chat))))


def saved(chat: LibraryRenderer) -> Path:
    import tempfile

    folder = Path(tempfile.mkdtemp())
    chat._tokenizer._backend.save(str(folder / "tokenizer.json"))
    return folder


def tool(name: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **({"parameters": schema} if schema else {})}}


def written(name: str, constraint: Constraint, seed: int) -> list[int]:
    """What a model without any sense writes: each allowed id is as likely as another, but it likes to end."""
    chat, grammars = made(name)
    stops, draw = chat.stop_token_ids, random.Random(seed)
    guide = grammars.open(constraint, stops)
    ids: list[int] = []
    vocabulary = 600
    while len(ids) < MOST:
        bits = np.unpackbits(guide.allowed(vocabulary), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        ending = [one for one in allowed if one in stops or set(chat.token_bytes(one)) & set(b'"}]<\n')]
        closing = [one for one in allowed if chat.token_bytes(one) == closing_byte(name, chat, ids)]
        if closing and draw.random() < 0.97:
            ids.append(closing[0])
        else:
            ids.append(draw.choice(ending if ending and draw.random() < 0.4 else allowed))
        if ids[-1] in stops:
            return ids
        guide.advance(ids[-1])
    raise AssertionError(f"no end in sight: {chat.decode(ids)!r}")


CLOSING = {
    **dict.fromkeys(("qwen3.5", "qwen3.6", "prime-qwen3", "nemotron-3"), b"\n</parameter>\n"),
    "minimax-m2": b"</parameter>\n",
}


def closing_byte(name: str, chat: LibraryRenderer, ids: list[int]) -> bytes:
    """Returns what comes next of the text that ends a value, once it has begun; a writer without sense would
    never find it.
    """
    closing = CLOSING.get(name, b"")
    said = b"".join(map(chat.token_bytes, ids[-len(closing) :]))
    for length in range(len(closing) - 1, 0, -1):
        if said.endswith(closing[:length]):
            return closing[length : length + 1]
    return b""


def reply(
    name: str, tools: list[dict[str, Any]], seed: int, *, text: Any = None, parallel: bool = True
) -> Parsed:
    chat, _ = made(name)
    prompt = chat.render(ASK, None)
    if chat.decode(prompt).rstrip().endswith("<think>"):
        prompt += chat.encode("\n</think>\n\n")
    elif name in ("qwen3", "template", "prime-qwen3", "generic", "generic-tags"):
        prompt += chat.encode("<think>\n\n</think>\n\n")
    constraint = chat.grammar(prompt, text=text, tools=tools, parallel=parallel)
    assert constraint is not None
    return chat.parse(written(name, constraint, seed), prompt, tools)


LEAF = st.sampled_from(
    [
        {"type": "string", "maxLength": 12},
        {"type": "integer", "minimum": -50, "maximum": 1000},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a", 'quo"te', "</tool_call>", "é\n", 3, None]},
        {"type": "string", "pattern": "^[a-z]{2,5}$"},
    ]
)
KEYS = st.sampled_from(["id", "why", "a b", 'k"ey', "name", "arguments", "ü"])


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(KEYS, inner, min_size=0, max_size=3)
    return properties.flatmap(
        lambda made: st.builds(
            lambda required: {
                "type": "object",
                "properties": made,
                "required": required,
                "additionalProperties": False,
            },
            st.lists(st.sampled_from(sorted(made)), unique=True) if made else st.just([]),
        )
    )


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner)


SCHEMA = objects(st.recursive(LEAF, lambda inner: objects(inner) | arrays(inner), max_leaves=4))


@pytest.mark.parametrize("name", JSON_FORMATS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(first=SCHEMA, second=SCHEMA, seed=st.integers(0, 10**6), parallel=st.booleans())
def test_calls_are_read_and_fit_their_schemas(
    name: str, first: dict[str, Any], second: dict[str, Any], seed: int, parallel: bool
) -> None:
    schemas = {"search": first, "write.it-2": second}
    parsed = reply(name, [tool(*item) for item in schemas.items()], seed, parallel=parallel)
    assert parsed.content == "" and parsed.tool_calls
    assert parallel or len(parsed.tool_calls) == 1
    for call in parsed.tool_calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


PLAIN = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "maxLength": 12},
        {"type": "string", "enum": ["a", "an other", 'quo"te', "12"]},
        {"type": "string", "const": "only"},
        {"type": "integer", "minimum": -50, "maximum": 1000},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "boolean"},
        {"type": "null"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
        {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 2},
    ]
)
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["x"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", TAGGED)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    properties=st.dictionaries(st.sampled_from(["id", "why", "a b", "name", "ü"]), PLAIN, max_size=4),
    few=st.booleans(),
    seed=st.integers(0, 10**6),
    parallel=st.booleans(),
)
def test_arguments_that_are_written_alone_are_read_and_fit(
    name: str, properties: dict[str, Any], few: bool, seed: int, parallel: bool
) -> None:
    schema = {
        **{"type": "object", "properties": properties, "$defs": {"point": POINT}},
        **{"required": sorted(properties)[: 2 if few else None], "additionalProperties": False},
    }
    parsed = reply(name, [tool("search", schema), tool("write.it-2", None)], seed, parallel=parallel)
    assert parsed.content == "" and parsed.tool_calls
    assert parallel or len(parsed.tool_calls) == 1
    for call in parsed.tool_calls:
        if call.name == "search":
            jsonschema.validate(json.loads(call.arguments), schema)
        else:
            assert (call.name, call.arguments) == ("write.it-2", "{}")


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[a-z]+$"},
        {"type": "string", "enum": [" a", "b"]},
        {"type": "string", "enum": ["</parameter>"]},
        {"enum": ["a", 3]},
        {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        {},
    ],
)
def test_a_schema_that_a_text_without_quotes_cannot_follow_has_no_grammar(
    name: str, schema: dict[str, Any]
) -> None:
    chat, _ = made(name)
    asked = tool("f", {"type": "object", "properties": {"key": schema}})
    assert chat.grammar(chat.render(ASK, None), text=None, tools=[asked], parallel=True) is None


@pytest.mark.parametrize("name", FORMATS)
def test_a_reply_is_the_text_that_was_asked_for_or_calls(name: str) -> None:
    text = Constraint(kind="json_schema", text='{"enum": ["yes", "no"]}')
    replies = [reply(name, [tool("stop", None)], seed, text=text) for seed in range(15)]
    said = {one.content for one in replies if not one.tool_calls}
    assert said and said <= {'"yes"', '"no"'}
    assert all(not one.content for one in replies if one.tool_calls)


@pytest.mark.parametrize("tools", [[], [tool("stop", None)]], ids=["alone", "beside calls"])
@pytest.mark.parametrize(
    ("own", "fits"),
    [
        ({}, [True, False, False]),
        ({"whitespace_pattern": "[ ]{1,2}"}, [True, True, False]),
        ({"item_separator": ",", "key_separator": ":"}, [False, False, True]),
    ],
)
def test_json_is_spelled_as_taught_or_as_the_schema_asks(
    tools: list[dict[str, Any]], own: dict[str, Any], fits: list[bool]
) -> None:
    chat, grammars = made("nano")
    schema = {"type": "object", **({"x-guidance": own} if own else {})}
    asked = Constraint(kind="json_schema", text=json.dumps(schema))
    constraint = chat.grammar(chat.render(ASK, None), text=asked, tools=tools, parallel=True) or asked

    def is_allowed(text: str) -> bool:
        guide = grammars.open(constraint, chat.stop_token_ids)
        for one in chat.encode(text):
            if not np.unpackbits(guide.allowed(600), bitorder="little")[one]:
                return False
            guide.advance(one)
        return bool(np.unpackbits(guide.allowed(600), bitorder="little")[chat.stop_token_ids[0]])

    texts = ('{"a": [1, 2], "b": {"c": true}}', '{ "a": 1 }', '{"a":[1,2],"b":true}')
    assert [is_allowed(text) for text in texts] == fits


@pytest.mark.parametrize("name", FORMATS)
def test_a_free_reply_without_parallel_calls_has_one_at_most(name: str) -> None:
    replies = [reply(name, [tool("stop", None)], seed, text="any", parallel=False) for seed in range(15)]
    assert {len(one.tool_calls) for one in replies} <= {0, 1}


def test_calls_may_come_in_parallel() -> None:
    assert any(len(reply("nano", [tool("stop", None)], seed).tool_calls) > 1 for seed in range(40))


def test_a_thought_may_come_first_and_an_open_one_is_ended() -> None:
    chat, _ = made("qwen3")
    text = Constraint(kind="choice", text='["yes"]')
    free = chat.grammar(chat.render(ASK, None), text=text, tools=(), parallel=True)
    assert free is not None
    thoughts = set()
    for seed in range(6):
        parsed = chat.parse(written("qwen3", free, seed), chat.render(ASK, None), None)
        thoughts.add(parsed.reasoning is not None)
        assert parsed.content == "yes"
    assert thoughts == {True, False}
    opened = [*chat.render(ASK, None), *chat.encode("<think>\n")]
    forced = chat.grammar(opened, text=text, tools=(), parallel=True)
    assert forced is not None
    ids = written("qwen3", forced, 1)
    assert chat.encode("</think>")[0] in ids
    assert chat.parse(ids, opened, None).content == "yes"


def test_a_format_without_a_grammar_has_none() -> None:
    chat = family("gemma4")
    assert chat.grammar(chat.render(ASK, None), text=None, tools=[tool("f", None)], parallel=True) is None


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"nano", "template"}))
def test_calls_as_the_format_itself_writes_them_are_allowed(name: str) -> None:
    chat, grammars = made(name)
    schema = {"type": "object", "properties": {"key": {"type": "string"}, "on": {"type": "boolean"}}}
    tools = [tool("find", schema)]
    function = {"name": "find", "arguments": '{"key": "a <b>", "on": true}'}
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "functions.find:0", "function": function}],
    }
    prompt = chat.render(ASK, tools)
    written_ids = chat.reply(prompt, said, tools)
    text = chat.decode(written_ids).replace("True", "true")  # of templates that print Python's
    constraint = chat.grammar(prompt, text=None, tools=tools, parallel=True)
    assert constraint is not None
    guide = grammars.open(constraint, chat.stop_token_ids)
    for one in chat.encode(text.removeprefix("\n") if name == "glm-4.5" else text):
        assert np.unpackbits(guide.allowed(600), bitorder="little")[one], (text, chat.decode([one]))
        if one in chat.stop_token_ids:
            return
        guide.advance(one)
    raise AssertionError(text)


def test_parameters_that_are_no_object_are_refused() -> None:
    chat, _ = made("nano")
    with pytest.raises(RequestError, match="'array'"):
        chat.grammar([], text=None, tools=[tool("f", {"type": "array"})], parallel=True)

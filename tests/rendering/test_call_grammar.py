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
from chat_families import family, template, tokenizer
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
FORMATS = ("nano", "qwen3", "template", "llama-3")
ASK = [{"role": "user", "content": "hello"}]
MOST = 1000


@lru_cache
def made(name: str) -> tuple[LibraryRenderer, Grammars]:
    if name == "nano":
        folder = str(resolve("art/nano-tools"))
        return create_chat_renderer(folder), Grammars(folder)
    chat = template(CHATML) if name == "template" else family(name)
    return chat, Grammars("", load=lambda _: read_vocabulary(str(saved())))


@lru_cache
def saved() -> Path:
    import tempfile

    folder = Path(tempfile.mkdtemp())
    tokenizer().save_pretrained(folder)
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
        ending = [one for one in allowed if one in stops or set(chat.token_bytes(one)) & set(b'"}]')]
        ids.append(draw.choice(ending if ending and draw.random() < 0.4 else allowed))
        if ids[-1] in stops:
            return ids
        guide.advance(ids[-1])
    raise AssertionError(f"no end in sight: {chat.decode(ids)!r}")


def reply(
    name: str, tools: list[dict[str, Any]], seed: int, *, text: Any = None, parallel: bool = True
) -> Parsed:
    chat, _ = made(name)
    prompt = chat.render(ASK, None)
    if name in ("qwen3", "template"):
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


@pytest.mark.parametrize("name", FORMATS)
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
    counts = {len(reply("nano", [tool("stop", None)], seed).tool_calls) for seed in range(40)}
    assert max(counts) > 1


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


def test_formats_without_a_grammar_have_none() -> None:
    for name in ("qwen3.5", "glm-4.5", "kimi-k2"):
        chat = family(name)
        assert chat.grammar(chat.render(ASK, None), text=None, tools=[tool("f", None)], parallel=True) is None


def test_parameters_that_are_no_object_are_refused() -> None:
    chat, _ = made("nano")
    with pytest.raises(RequestError, match="'array'"):
        chat.grammar([], text=None, tools=[tool("f", {"type": "array"})], parallel=True)

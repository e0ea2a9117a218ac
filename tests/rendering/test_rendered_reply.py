"""What an assistant's message is in ids: what the model would sample to say it, in every chat format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from chat_families import (
    CALLS_ALONE,
    FAMILIES,
    REAL,
    WITHOUT_THOUGHTS,
    each,
    family,
    needs_tokenizers,
    template,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from art.engine.nano_models import resolve
from art.errors import RequestError
from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer

USER = {"role": "user", "content": "ok, hello?"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Read a letter.",
            "parameters": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "city": {"type": "string"}},
            },
        },
    }
]


def call(text: str = "", **arguments: Any) -> dict[str, Any]:
    function = {"name": "read", "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"id": "functions.read:0", "function": function}],
    }


PLAIN = {"role": "assistant", "content": "hello there"}
THOUGHT = {"role": "assistant", "content": "hello there", "reasoning_content": "well, hmm"}
CALL = call(id=1, city="Oslo")
SPOKEN_CALL = call("let me look", id=2, city="Z")
RESULT = {"role": "tool", "tool_call_id": "functions.read:0", "name": "read", "content": "r7"}

APPENDING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PREFILLED = APPENDING.replace("assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif")
ENDLESS = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def same(chat: LibraryRenderer, message: dict[str, Any], tools: Any) -> list[int]:
    """The reply's ids, after a look at what they say."""
    prompt = chat.render([SYSTEM, USER], tools)
    ids = chat.reply(prompt, message, tools)
    read = chat.parse(ids, prompt, tools)
    assert read.content.strip() == message["content"]
    assert (read.reasoning or "") == message.get("reasoning_content", "")
    wanted = [one["function"] for one in message.get("tool_calls", [])]
    assert [one.name for one in read.tool_calls] == [one["name"] for one in wanted]
    assert [json.loads(one.arguments) for one in read.tool_calls] == [
        json.loads(one["arguments"]) for one in wanted
    ]
    assert ids[-1] in chat.stop_token_ids and not set(ids[:-1]) & set(chat.stop_token_ids)
    return ids


def sayable() -> Iterator[Any]:
    """Each format with what it has a place for."""
    for what, message in (("text", PLAIN), ("thought", THOUGHT), ("call", CALL), ("both", SPOKEN_CALL)):
        without = {"thought": WITHOUT_THOUGHTS, "both": CALLS_ALONE}.get(what, ())
        for name in FAMILIES:
            if name not in without:
                marks = (pytest.mark.slow, needs_tokenizers) if name in REAL else ()
                yield pytest.param(name, message, id=f"{what}-{name}", marks=marks)


@pytest.mark.parametrize(("name", "message"), list(sayable()))
def test_a_reply_is_read_back_as_its_message(name: str, message: dict[str, Any]) -> None:
    same(family(name), message, TOOLS if message.get("tool_calls") else None)


NO_ANALYSIS = "<|channel|>analysis<|message|><|end|><|start|>assistant"
"""An empty thought of gpt-oss."""


def bare(text: str) -> str:
    """Without the empty thoughts that formats drop from turns that are over."""
    return re.sub(r"</?think>|\s", "", text).replace(NO_ANALYSIS, "")


@pytest.mark.parametrize("name", each(FAMILIES))
@pytest.mark.parametrize("message", [PLAIN, CALL], ids=["text", "call"])
def test_a_reply_is_what_the_whole_rendering_holds_and_can_be_gone_on_from(
    name: str, message: dict[str, Any]
) -> None:
    chat, tools = family(name), TOOLS if message is CALL else None
    prompt = chat.render([SYSTEM, USER], tools)
    ids = chat.reply(prompt, message, tools)
    whole = chat.decode(chat._renderer.render_ids([SYSTEM, USER, message], tools=tools))
    assert bare(whole).startswith(bare(chat.decode(prompt + ids[:-1])))
    after = RESULT if message is CALL else USER
    bridged = chat.bridge(prompt, ids, [after], tools)
    assert bridged is not None and bridged[: len(prompt) + len(ids)] == prompt + ids


@pytest.mark.parametrize("name", each(["qwen3", "qwen3.5"]))
@pytest.mark.parametrize("message", [PLAIN, THOUGHT], ids=["text", "thought"])
def test_where_thinking_is_off_reasoning_is_left_out(name: str, message: dict[str, Any]) -> None:
    chat = family(name, enable_thinking=False)
    prompt = chat.render([USER], None)
    assert chat.decode(prompt).endswith("</think>\n\n")
    assert chat.decode(chat.reply(prompt, message, None)) == "hello there<|im_end|>"


@pytest.mark.parametrize("name", each(FAMILIES))
def test_an_assistant_may_speak_first(name: str) -> None:
    chat = family(name)
    prompt = chat.first_prompt(PLAIN, None)
    ids = chat.reply(prompt, PLAIN, None)
    assert prompt and chat.parse(ids, prompt, None).content.strip() == "hello there"


@pytest.mark.parametrize(
    "template_text", [APPENDING, PREFILLED, ENDLESS], ids=["plain", "prefilled", "endless"]
)
def test_templates_tell_their_replies(template_text: str) -> None:
    chat = template(template_text)
    ids = same(chat, PLAIN, None)
    thought = "\n</think>\n\n" if template_text is PREFILLED else ""
    assert chat.decode(ids) == f"{thought}hello there<|im_end|>"


def test_a_template_that_rewrites_the_opening_is_refused() -> None:
    chat = template("{{ messages | length }}" + APPENDING)
    with pytest.raises(RequestError, match="otherwise than behind its own opening"):
        chat.reply(chat.render([USER], None), PLAIN, None)


@pytest.mark.slow
@needs_tokenizers
def test_text_that_would_end_the_turn_is_refused_where_it_is_parsed() -> None:
    parsing = family("qwen3").with_arguments({}, special_tokens_in_text="parse")
    with pytest.raises(RequestError, match=r"holds '<\|im_end\|>', which ends a turn"):
        parsing.reply([1], {"role": "assistant", "content": "a<|im_end|>b"}, None)


@pytest.fixture(scope="module")
def nano() -> LibraryRenderer:
    return create_chat_renderer(resolve("art/nano-tools"), name="art/nano-tools")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(
    lambda text: text == text.strip() and "<" not in text
)


@settings(max_examples=60, deadline=None)
@given(TEXT, st.none() | TEXT, st.lists(st.dictionaries(TEXT, TEXT | st.integers(), max_size=2), max_size=2))
def test_nano_replies_are_a_part_of_the_rendering(
    nano: LibraryRenderer, text: str, thought: str | None, calls: list[dict[str, Any]]
) -> None:
    """Any message, as ids that the whole conversation's rendering begins with."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [call(**{"a": 1})["tool_calls"][0] for _ in calls]
        for one, arguments in zip(message["tool_calls"], calls, strict=True):
            one["function"]["arguments"] = json.dumps(arguments)
    ids = same(nano, message, TOOLS)
    prompt = nano.render([SYSTEM, USER], TOOLS)
    whole = nano._renderer.render_ids([SYSTEM, USER, message], tools=TOOLS)
    assert whole[: len(prompt) + len(ids)] == prompt + ids
    assert nano.decode(whole[len(prompt) + len(ids) :]) == "\n"

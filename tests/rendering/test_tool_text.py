"""Tools of a model whose template knows none: told, called, answered and continued as text."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from chat_families import generic
from hypothesis import given, settings
from hypothesis import strategies as st

from art.errors import RequestError
from art.rendering.chat_renderer import Parsed, ToolCall
from art.rendering.library import LibraryRenderer
from art.rendering.tool_text import as_plain, read_listed_calls, tools_text

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) or m.role == 'system' %}"
    "{{ raise_exception('user and assistant take turns') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As Gemma's: no system message, no tool message, and never the same speaker twice."""
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Größe",
            "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}},
        },
    }
    for name in ("read", "write")
]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "ok, hello?"}


def calling(*calls: tuple[str, str], text: str = "") -> dict[str, Any]:
    listed = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text, "tool_calls": listed}


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


@pytest.fixture(params=[True, False], ids=["tags are tokens", "tags are text"])
def chat(request: pytest.FixtureRequest) -> LibraryRenderer:
    return generic(CHATML, tool_markers=request.param)


def test_the_whole_conversation_reads_as_documented(chat: LibraryRenderer) -> None:
    said = calling(("read", '{"id":7}'), ("write", '{"id": 1.0}'), text="I look.")
    ids = chat.render([SYSTEM, USER, said, result(0, "a"), result(1, "b"), USER], TOOLS)
    assert chat.decode(ids) == (
        f"<|im_start|>system\nBe brief.\n\n{tools_text(TOOLS)}<|im_end|>\n"
        "<|im_start|>user\nok, hello?<|im_end|>\n"
        '<|im_start|>assistant\nI look.\n<tool_call>[{"name": "read", "arguments": {"id":7}}, '
        '{"name": "write", "arguments": {"id": 1.0}}]</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>\n\n"
        "ok, hello?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert json.dumps(TOOLS, ensure_ascii=False) in tools_text(TOOLS)


def test_without_tools_and_calls_nothing_changes(chat: LibraryRenderer) -> None:
    assert chat.decode(chat.render([SYSTEM, USER], None)) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nok, hello?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    text = '<tool_call>[{"name": "read", "arguments": {}}]</tool_call>'
    parsed = chat.parse(chat.encode(f"{text}<|im_end|>"), chat.render([USER], None), None)
    assert parsed == Parsed(content=text)


def test_results_are_readable_where_no_tools_are_offered_any_more(chat: LibraryRenderer) -> None:
    text = chat.decode(chat.render([USER, calling(("read", "{}")), result(0, "r7")], None))
    assert "<tool_response>\nr7\n</tool_response>" in text and "<tools>" not in text


def test_a_template_that_refuses_other_roles_has_tools_too() -> None:
    chat = generic.__wrapped__(ALTERNATING, tool_markers=False)
    first = chat.render([USER], TOOLS)
    assert chat.decode(first) == (
        f"<|im_start|>user\n{tools_text(TOOLS)}\n\nok, hello?<|im_end|>\n<|im_start|>assistant\n"
    )
    said = calling(("read", "{}"), ("read", "{}"))
    reply = chat.reply(first, said, TOOLS)
    new = [result(0, "a"), result(1, "b"), USER]
    bridged = chat.bridge(first, reply, new, TOOLS)
    assert bridged == chat.render([USER, said, *new], TOOLS)
    assert bridged[: len(first) + len(reply)] == first + reply
    with pytest.raises(RequestError, match="take turns"):
        chat.render([SYSTEM, USER], TOOLS)
    assert chat.decode(chat.first_prompt(said, TOOLS)).startswith("<|im_start|>user\nYou are an expert")


NAME = st.from_regex(r"[A-Za-z0-9_.:/-]{1,12}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
WORDS = TEXT.filter(lambda text: text == text.strip() and "<" not in text)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=5,
)
CALLS = st.lists(
    st.tuples(NAME, st.dictionaries(TEXT, JSON, max_size=2), st.booleans(), st.sampled_from([None, 1])),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(words=WORDS, calls=CALLS, results=st.lists(TEXT, min_size=1, max_size=3), tags=st.booleans())
def test_any_turn_is_said_read_and_gone_on_from_exactly(
    words: str, calls: Any, results: list[str], tags: bool
) -> None:
    """Also texts that spell the format's own tags, and the tokens that end a turn."""
    chat = generic(CHATML, tool_markers=tags)
    spelled = [(name, json.dumps(value, ensure_ascii=a, indent=i)) for name, value, a, i in calls]
    said = calling(*spelled, text=words)
    prompt = chat.render([SYSTEM, USER], TOOLS)
    reply = chat.reply(prompt, said, TOOLS)
    read = chat.parse(reply, prompt, TOOLS)
    assert read.content == words and read.malformed_calls == 0
    assert [call.name for call in read.tool_calls] == [name for name, _ in spelled]
    for call, (_, written), (_, value, *_) in zip(read.tool_calls, spelled, calls, strict=True):
        assert json.loads(call.arguments) == value
        # What may be a part of a special token, such as <|im_end|>, [BOS] or ]~b], is written anew.
        assert call.arguments == written or any(mark in written for mark in "<[]")
    new = [result(n, text) for n, text in enumerate(results)]
    bridged = chat.bridge(prompt, reply, new, TOOLS)
    assert bridged is not None and bridged[: len(prompt) + len(reply)] == prompt + reply
    assert bridged == chat.render([SYSTEM, USER, said, *new], TOOLS)
    told = ""
    for count in range(len(reply)):
        partial = chat.parse(reply[:count], prompt, TOOLS, partial=True)
        assert words.startswith(partial.content.rstrip("\ufffd")) and partial.content.startswith(told)
        told = partial.content.rstrip("\ufffd")
        assert not partial.tool_calls


READ = ToolCall(name="read", arguments='{"id": 7}')


@pytest.mark.parametrize(
    ("text", "content", "calls", "malformed"),
    [
        ('<tool_call>\n[{"name": "read", "arguments": {"id": 7}}]\n</tool_call>', "", (READ,), 0),
        ('<tool_call>{"name": "read", "arguments": {"id": 7}}</tool_call>', "", (READ,), 0),
        ('<tool_call>[{"name": "read", "arguments": "{\\"id\\": 7}"}]</tool_call>', "", (READ,), 0),
        (
            '<tool_call>[{"arguments": {"x": "</tool_call>"}, "name": "read"},]</tool_call>',
            "",
            (ToolCall(name="read", arguments='{"x": "</tool_call>"}'),),
            0,
        ),
        ('<tool_call>[{"name": "read"}]</tool_call>', "", (ToolCall(name="read", arguments="{}"),), 0),
        ('A\n<tool_call>[{"name": "read", "arguments": {"id": 7}}]</tool_call>\nB', "A\nB", (READ,), 0),
        ("<tool_call>[]</tool_call>", None, (), 0),
        ("  words < more <tool_", None, (), 0),
        ("<tool_call>[", None, (), 1),
        ("a <tool_call>[{]</tool_call> b", None, (), 1),
        ('<tool_call>[{"name": "read", "arguments": {"id": 7}}', None, (), 1),
        ('<tool_call>[{"name": "read", "arguments": [7]}]</tool_call>', None, (), 1),
        ('<tool_call>[{"name": "", "arguments": {}}]</tool_call>', None, (), 1),
        ('<tool_call>["read"]</tool_call>', None, (), 1),
        ('<tool_call>[{"name": "read"} {"name": "read"}]</tool_call>', None, (), 1),
        (f"<tool_call>{'[' * 5000}</tool_call>", None, (), 1),
        (f'<tool_call>[{{"name": "read", "arguments": {{"id": {"1" * 5000}}}}}]</tool_call>', None, (), 1),
        (
            '<tool_call>[x]</tool_call>\n<tool_call>[{"name": "read", "arguments": {"id": 7}}]</tool_call>',
            "<tool_call>[x]</tool_call>",
            (READ,),
            1,
        ),
    ],
)
def test_a_call_is_read_and_what_is_none_stays_text(
    text: str, content: str | None, calls: tuple[ToolCall, ...], malformed: int
) -> None:
    read = read_listed_calls(Parsed(content=text), partial=False, constrained=False)
    wanted = text if content is None else content
    assert read == Parsed(content=wanted, tool_calls=calls, malformed_calls=malformed)


def test_calls_that_had_to_be_made_are_told_piece_by_piece() -> None:
    text = '<tool_call>[{"name": "read", "arguments": {"id": 7}}, {"name": "write", "arguments": {"a": "}"}}]'
    told: list[str] = []
    for end in range(len(text) + 1):
        read = read_listed_calls(Parsed(content=text[:end]), partial=True, constrained=True)
        assert not read.content
        for number, call in enumerate(read.tool_calls):
            if number == len(told):
                told.append("")
            assert call.arguments.startswith(told[number])
            told[number] = call.arguments
    assert told == ['{"id": 7}', '{"a": "}"}']
    cut = read_listed_calls(Parsed(content=text[:-6]), partial=False, constrained=True)
    assert [call.arguments for call in cut.tool_calls] == ['{"id": 7}', '{"a": ']


def test_what_has_parts_keeps_them() -> None:
    image = {"type": "image", "image": "1.png"}
    (plain,) = as_plain([{"role": "tool", "content": [{"type": "text", "text": "see"}, image]}])
    assert plain["role"] == "user"
    assert [part.get("text", part["type"]) for part in plain["content"]] == [
        "<tool_response>\n",
        "see",
        "image",
        "\n</tool_response>",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("tags", [True, False])
def test_a_free_reply_is_words_or_words_and_well_formed_calls(tags: bool) -> None:
    """What a grammar of free text with calls lets through, one id after the other."""
    from test_call_grammar import made, tool

    chat, grammars = made("generic-tags" if tags else "generic")
    prompt = chat.render([USER], None)
    constraint = chat.grammar(prompt, text="any", tools=[tool("stop", None)], parallel=False)
    assert constraint is not None

    def ends(text: str) -> bool:
        guide = grammars.open(constraint, chat.stop_token_ids)
        for one in chat.encode(f"{text}<|im_end|>"):
            if not guide.allowed(600)[one // 8] >> one % 8 & 1:
                return False
            if one in chat.stop_token_ids:
                return True
            guide.advance(one)
        raise AssertionError("no end")

    call = '<tool_call>[{"name": "stop", "arguments": {}}]</tool_call>'
    assert ends("Well, then < tool") and ends(call) and ends(f"I stop.\n{call}")
    for wrong in ("<tool_call>x", f"{call}{call}", f"{call} more", "a <tool_call>[{}]</tool_call>"):
        assert not ends(wrong)


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    made = generic(CHATML, tool_markers=False)
    made._tokenizer._backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_the_format_is_said_once_and_can_be_turned_off(
    plain_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from art.rendering.registry import create_chat_renderer

    caplog.set_level(logging.INFO)
    chat = create_chat_renderer(plain_folder, name="me/mine")
    prompt = chat.render([USER], TOOLS)
    chat.bridge(prompt, chat.encode("hello<|im_end|>"), [USER], TOOLS)
    assert [one for one in caplog.messages if "me/mine knows no tools" in one and "tool_format" in one]
    assert sum("knows no tools" in one for one in caplog.messages) == 1
    silent = chat.with_arguments({}, tool_format="template")
    assert silent.variant != chat.variant and silent.with_arguments({}) is silent
    assert silent.confined().kind == silent.kind == "ToollessRenderer"
    assert silent.render([USER], None) == chat.render([USER], None)
    with pytest.raises(RequestError, match=r"its chat template knows no tools.*tool_format='template'"):
        silent.render([USER], TOOLS)
    assert chat.confined().render([USER], TOOLS) == prompt
    own = chat.with_arguments({}, template="{{ tools }}" + CHATML)
    assert own.kind == "TemplateRenderer"
    assert own.with_arguments({}, template="x" + CHATML).kind == "GenericToolsRenderer"
    assert sum("knows no tools" in one for one in caplog.messages) == 2

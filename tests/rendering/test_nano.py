from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from art.engine.nano_models import resolve
from art.environments.tasks import mail
from art.rendering.nano import RENDERER_KEY, RENDERER_NAME, NanoRenderer, create_nano_renderer
from art.rendering.tokenizer import CACHED_TEXTS, FastTokenizer

NAMES = ("art/nano-games", "art/nano-tools", "art/nano-mcp", "art/nano-words")
TOKENIZERS = {name: PreTrainedTokenizerFast.from_pretrained(resolve(name)) for name in NAMES}

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
lively = st.one_of(
    words, st.sampled_from(["B2", "  1 2 3\nA . X .", "\n\n", " ", '"}}\n', "</think>", "é🙂", "maybe"])
)
contents = st.one_of(lively, st.lists(lively.map(lambda text: {"type": "text", "text": text}), max_size=2))
values = st.one_of(lively, st.booleans(), st.integers(), st.none())
calls = st.fixed_dictionaries(
    {
        "id": st.just("call"),
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["search", "read"]),
                "arguments": st.one_of(
                    st.dictionaries(st.sampled_from(["keyword", "id"]), values, max_size=2),
                    st.sampled_from(["{}", '{"id": 1.0}', "not json"]),
                ),
            }
        ),
    }
)
others = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": contents}),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": st.just("call"), "content": contents}),
)
assistants = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": contents},
    optional={"tool_calls": st.lists(calls, max_size=2), "reasoning_content": lively},
)
schemas = st.fixed_dictionaries(
    {"name": st.sampled_from(["search", "read"]), "description": words},
    optional={
        "parameters": st.fixed_dictionaries(
            {"type": st.just("object")},
            optional={
                "properties": st.dictionaries(st.sampled_from(["a", "b", "c"]), st.just({"type": "string"}))
            },
        )
    },
).map(lambda function: {"type": "function", "function": function})
tool_lists = st.one_of(st.none(), st.lists(schemas, min_size=1, max_size=3))


@pytest.fixture(params=NAMES)
def renderer(request: pytest.FixtureRequest) -> NanoRenderer:
    return create_nano_renderer(TOKENIZERS[request.param])


@pytest.mark.parametrize("name", NAMES)
def test_words_that_a_nano_model_was_never_taught_are_told_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(resolve(name))
    tokenizer.name_or_path = name
    renderer = create_nano_renderer(tokenizer)
    for _ in range(2):
        renderer.render([{"role": "user", "content": "Summarize this protocol"}], add_generation_prompt=True)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{name} knows" in record.message and "'Summarize', " in record.message
    assert "docs/guides/models.md" in record.message


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("art/nano-games", "art.environments.tasks.tic_tac_toe"),
        ("art/nano-tools", "art.environments.tasks.mail"),
        pytest.param("art/nano-mcp", "nano.weather", marks=pytest.mark.extension),
    ],
)
def test_nothing_is_told_of_the_prompts_that_a_model_was_taught(
    name: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = import_module(path)
    world = task.environment(task.scenario(0, 0), 0)
    create_nano_renderer(TOKENIZERS[name]).render(world.opening, tools=world.tools)
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, deadline=None)
@given(
    messages=st.lists(st.one_of(others, assistants), min_size=1, max_size=6),
    tools=tool_lists,
    generate=st.booleans(),
)
def test_the_renderer_equals_the_chat_template(name: str, messages: Any, tools: Any, generate: bool) -> None:
    tokenizer = TOKENIZERS[name]
    expected = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=generate, return_dict=False
    )
    rendered = create_nano_renderer(tokenizer).render(messages, tools=tools, add_generation_prompt=generate)
    assert rendered.token_ids == expected
    assert len(rendered.message_indices) == len(rendered.sampled_mask) == len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(
    history=st.lists(others, min_size=1, max_size=3),
    reply=assistants,
    new=st.lists(others, min_size=1, max_size=3),
    tools=tool_lists,
)
def test_a_bridge_over_a_canonical_reply_equals_the_full_rendering(
    name: str, history: Any, reply: Any, new: Any, tools: Any
) -> None:
    renderer = create_nano_renderer(TOKENIZERS[name])
    prompt = renderer.render_ids(history, tools=tools, add_generation_prompt=True)
    with_reply = renderer.render([*history, reply], tools=tools)
    completion = [
        token
        for token, sampled, index in zip(
            with_reply.token_ids, with_reply.sampled_mask, with_reply.message_indices, strict=True
        )
        if sampled and index == len(history)
    ]
    bridged = renderer.bridge_to_next_turn(prompt, completion, new, tools=tools)
    assert bridged is not None
    assert bridged.token_ids == renderer.render_ids(
        [*history, reply, *new], tools=tools, add_generation_prompt=True
    )
    assert bridged.token_ids[: len(prompt) + len(completion)] == prompt + completion
    assert not any(bridged.sampled_mask)


@settings(max_examples=40, deadline=None)
@given(completion=st.lists(st.integers(min_value=0, max_value=254), max_size=12), new=others)
def test_a_bridge_keeps_whatever_was_sampled_and_closes_a_cut_reply(completion: list[int], new: Any) -> None:
    renderer = create_nano_renderer(TOKENIZERS["art/nano-tools"])
    im_end = renderer.get_stop_token_ids()[0]
    prompt = renderer.render_ids([{"role": "user", "content": "Who?"}], add_generation_prompt=True)
    ordinary = [token for token in completion if token not in renderer.get_stop_token_ids()]
    bridged = renderer.bridge_to_next_turn(prompt, ordinary, [new])
    assert bridged is not None
    assert bridged.token_ids[: len(prompt) + len(ordinary) + 1] == [*prompt, *ordinary, im_end]


def test_a_bridge_refuses_what_is_no_extension(renderer: NanoRenderer) -> None:
    prompt = renderer.render_ids([{"role": "user", "content": "Who?"}], add_generation_prompt=True)
    user = {"role": "user", "content": "And?"}
    assert renderer.bridge_to_next_turn([], [], [user]) is None
    assert renderer.bridge_to_next_turn(prompt, [], []) is None
    assert renderer.bridge_to_next_turn(prompt, [], [{"role": "assistant", "content": "I"}, user]) is None


def test_replies_are_what_is_sampled_and_nothing_else(renderer: NanoRenderer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "B2"}]
    rendered = renderer.render(messages)
    tokenizer = renderer._tokenizer
    sampled = [
        token
        for token, is_sampled in zip(rendered.token_ids, rendered.sampled_mask, strict=True)
        if is_sampled
    ]
    assert tokenizer.decode(sampled) == "B2<|im_end|>"
    assert rendered.message_roles == ["user", "assistant"]


def test_tools_are_told_in_one_line_each(renderer: NanoRenderer) -> None:
    ids = renderer.render_ids([{"role": "system", "content": "Help."}], tools=mail.TOOLS)
    expected = "<|im_start|>system\nHelp.\n\nTools:\nsearch(keyword)\nread(id)\nanswer(text)<|im_end|>\n"
    assert renderer._tokenizer.decode(ids) == expected


@pytest.mark.parametrize("arguments", [{"keyword": "atlas"}, {"keyword": 'a "b"\n'}, {"n": 1.0, "on": False}])
def test_a_rendered_call_is_parsed_back(renderer: NanoRenderer, arguments: dict[str, Any]) -> None:
    call = {"type": "function", "function": {"name": "search", "arguments": json.dumps(arguments)}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
    ]
    rendered = renderer.render(messages)
    reply = [
        token for token, sampled in zip(rendered.token_ids, rendered.sampled_mask, strict=True) if sampled
    ]
    text = f'<tool_call>\n{{"name": "search", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    assert renderer._tokenizer.decode(reply) == f"{text}\n{text}<|im_end|>"
    parsed = renderer.parse_response(reply)
    assert parsed.content == ""
    assert [(found.name, found.arguments) for found in parsed.tool_calls] == [("search", arguments)] * 2


def test_broken_and_open_calls_are_reported_not_dropped(renderer: NanoRenderer) -> None:
    encode = renderer._tokenizer.encode
    broken = renderer.parse_response(
        encode("<tool_call>\n{oops}\n</tool_call><|im_end|>", add_special_tokens=False)
    )
    cut = renderer.parse_response(encode('<tool_call>\n{"name": "se', add_special_tokens=False))
    assert [call.status.value for call in (*broken.tool_calls, *cut.tool_calls)] == [
        "invalid_json",
        "unclosed_block",
    ]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "at least one message"),
        ([{"role": "critic", "content": "x"}], "unknown role 'critic'"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "reads text only",
        ),
    ],
)
def test_what_cannot_be_rendered_is_refused(renderer: NanoRenderer, messages: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        renderer.render(messages)


@pytest.mark.parametrize("name", NAMES)
def test_the_tokenizer_config_names_the_renderer(name: str) -> None:
    config = json.loads((resolve(name) / "tokenizer_config.json").read_text())
    assert config[RENDERER_KEY] == RENDERER_NAME


@pytest.mark.slow
def test_the_renderer_needs_no_torch() -> None:
    program = "import sys, art.rendering.nano; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=240).strip() == "False"


def test_the_ids_of_texts_are_kept_in_memory_of_a_bounded_size() -> None:
    """Each text comes twice, with the ids that the tokenizer itself gives; a thousand more take no room."""
    tokenizer = TOKENIZERS["art/nano-words"]
    fast, held = FastTokenizer(tokenizer), []
    tracemalloc.start()
    try:
        for number in range(2 * CACHED_TEXTS + 400):
            ids = fast.encode(text := f"{number} yes no maybe " * 5)
            assert fast.encode(text) == ids
            if number % CACHED_TEXTS == 0:
                assert ids == tokenizer.encode(text, add_special_tokens=False)
            if number in (CACHED_TEXTS + 399, 2 * CACHED_TEXTS + 399):
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 0.05 * held[0], held
    assert held[0] < CACHED_TEXTS * (500 + 4 * len(ids) + len(text)), "four bytes an id"

"""Which renderer a model gets, and what each keeps of a conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.errors import ConfigurationError, RequestError
from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer
from art.rendering.reply import raw_member

HERE = Path(__file__).parent

USER = {"role": "user", "content": "hello an ok"}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]

APPENDING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
COUNTING = "{{ messages | length }}" + APPENDING


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a model folder with other contents each time."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("chat_folder", HERE.parent / "server" / "chat_folder.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(**options: Any) -> Path:
        return module.write_chat_folder(tmp_path_factory.mktemp("model"), **options)

    return make


def renderer_of(chat: LibraryRenderer) -> str:
    return type(chat._renderer).__name__


def test_the_marker_chooses(folders: Any) -> None:
    assert renderer_of(create_chat_renderer(folders(marker="qwen3"))) == "Qwen3Renderer"
    assert renderer_of(create_chat_renderer(folders(marker="nano"))) == "NanoRenderer"
    with pytest.raises(ConfigurationError, match=r"'quen3'; known: nano, .*qwen3"):
        create_chat_renderer(folders(marker="quen3"))


def test_a_family_is_taken_only_when_it_writes_what_the_template_writes(folders: Any) -> None:
    same = folders(marker=None, chat_template=APPENDING)
    assert renderer_of(create_chat_renderer(same)) == "Qwen3Renderer"
    other = folders(marker=None, chat_template=APPENDING.replace("'\n'", "': '"))
    assert renderer_of(create_chat_renderer(other)) == "GenericToolsRenderer"
    unknown = folders(marker=None, chat_template=APPENDING, model_type="mystery")
    assert renderer_of(create_chat_renderer(unknown)) == "GenericToolsRenderer"
    told = folders(marker=None, chat_template="{{ tools }}" + APPENDING, model_type="mystery")
    assert renderer_of(create_chat_renderer(told)) == "TemplateRenderer"


def test_a_model_without_any_format_is_refused(folders: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no chat template"):
        create_chat_renderer(folders(marker=None))
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        create_chat_renderer(tmp_path)


@pytest.mark.parametrize("marker", ["qwen3", "nano", None])
def test_bridges_extend_the_ids_they_are_given(folders: Any, marker: str | None) -> None:
    chat = create_chat_renderer(folders(marker=marker, chat_template=APPENDING, model_type="mystery"))
    prompt = chat.render([USER], None)
    for completion in (chat.encode("h") + chat.encode("ello<|im_end|>"), chat.encode("cut")):
        bridged = chat.bridge(prompt, completion, [USER], None)
        assert bridged is not None
        assert bridged[: len(prompt) + len(completion)] == prompt + completion
    canonical = chat.encode("hello<|im_end|>")
    said = {"role": "assistant", "content": "hello"}
    assert chat.bridge(prompt, canonical, [USER], None) == chat.render([USER, said, USER], None)
    assert chat.bridge(prompt, canonical, [], None) is None
    assert chat.bridge(prompt, canonical, [said], None) is None


def test_a_template_that_rewrites_history_is_never_bridged(folders: Any) -> None:
    chat = create_chat_renderer(folders(marker=None, chat_template=COUNTING))
    assert chat.bridge(chat.render([USER], None), chat.encode("hello<|im_end|>"), [USER], None) is None


def test_messages_that_a_format_cannot_express_are_refused_by_field(folders: Any) -> None:
    template = "{{ raise_exception('no such role') }}"
    chat = create_chat_renderer(folders(marker=None, chat_template=template))
    with pytest.raises(RequestError, match="no such role") as refused:
        chat.render([USER], None)
    assert refused.value.param == "messages"


def test_generation_settings_add_stop_ids(folders: Any) -> None:
    folder = folders()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    chat = create_chat_renderer(folder)
    assert {7, 8, *chat.encode("<|im_end|>")} <= set(chat.stop_token_ids)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_bytes_of_ids_spell_the_text(chat_renderer: LibraryRenderer, text: str) -> None:
    ids = chat_renderer.encode(text)
    assert b"".join(chat_renderer.token_bytes(token) for token in ids) == text.encode()


@pytest.fixture(scope="module")
def chat_renderer(folders: Any) -> LibraryRenderer:
    return create_chat_renderer(folders())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON, max_size=4), JSON, st.integers(0, 3), st.booleans())
def test_a_raw_member_is_the_text_as_written(others: dict, value: Any, indent: int, ascii: bool) -> None:
    others.pop("arguments", None)
    written = json.dumps(value, indent=indent, ensure_ascii=ascii)
    members = [f"{json.dumps(name)} : {json.dumps(other)}" for name, other in others.items()]
    members.insert(len(members) // 2, f'"arguments":\t{written}')
    assert raw_member(" {" + " ,\n".join(members) + "} ", "arguments") == written


@pytest.mark.parametrize("text", ["", "[]", "{", '{"arguments"', '{"arguments": }', '{"a": 1}', "{1}"])
def test_what_is_no_object_has_no_member(text: str) -> None:
    assert raw_member(text, "arguments") is None


@pytest.mark.parametrize("written", ['{"a":1.0}', '{ "a" : 1e3, "b":false }', '{"a": "\\u00e9 é"}'])
def test_arguments_are_read_as_written(chat_renderer: LibraryRenderer, written: str) -> None:
    text = f'<tool_call>\n{{"arguments": {written}, "name": "read"}}\n</tool_call><|im_end|>'
    parsed = chat_renderer.parse(chat_renderer.encode(text), [], TOOLS)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("read", written)]
    quoted = f'<tool_call>\n{{"name": "read", "arguments": {json.dumps(written)}}}\n</tool_call>'
    parsed = chat_renderer.parse(chat_renderer.encode(quoted), [], TOOLS)
    assert [call.arguments for call in parsed.tool_calls] == [written]


@given(st.lists(st.integers(0, 271), max_size=40), st.booleans(), st.booleans())
def test_any_ids_are_read_as_a_message(
    chat_renderer: LibraryRenderer, ids: list[int], with_tools: bool, partial: bool
) -> None:
    parsed = chat_renderer.parse(
        ids, chat_renderer.render([USER], None), TOOLS if with_tools else None, partial=partial
    )
    parsed.content.encode()
    assert with_tools or not parsed.tool_calls
    for call in parsed.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "1" * 5000])
def test_json_that_no_parser_takes_stays_text(chat_renderer: LibraryRenderer, value: str) -> None:
    text = f'<tool_call>\n{{"name": "read", "arguments": {value}}}\n</tool_call>'
    parsed = chat_renderer.parse(chat_renderer.encode(text + "<|im_end|>"), [], TOOLS)
    assert (parsed.content, parsed.tool_calls) == (text, ())

"""A chat format that is told something renders otherwise, and says so; what it does not know is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jinja2 import nodes

from art.errors import ConfigurationError, RequestError
from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer
from art.rendering.template import LONGEST_TEMPLATE, template_names

USER = {"role": "user", "content": "hello"}
STYLED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% generation %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + (style or '') }}{% endif %}"
    "{% endgeneration %}"
)
OTHER = "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}"


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import importlib.util

    path = Path(__file__).parent.parent / "server" / "chat_folder.py"
    spec = importlib.util.spec_from_file_location("chat_folder", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def made(**options: Any) -> LibraryRenderer:
        return create_chat_renderer(module.write_chat_folder(tmp_path_factory.mktemp("model"), **options))

    return made


def text(chat: LibraryRenderer) -> str:
    return chat.decode(chat.render([USER], None))


def test_a_family_is_told_by_its_own_arguments(make: Any) -> None:
    chat = make(marker="qwen3")
    quiet = chat.with_arguments({"enable_thinking": False})
    assert text(quiet) == text(chat) + "<think>\n\n</think>\n\n"
    assert chat.variant == "" != quiet.variant
    assert quiet.with_arguments({}) is quiet and chat.with_arguments({"enable_thinking": False}) is quiet
    assert quiet.with_arguments({"enable_thinking": True}).variant not in (
        chat.variant,
        quiet.variant,
    )
    assert quiet.stop_token_ids == chat.stop_token_ids
    for wrong in ({"enable_thinkin": False}, {"thinking_retention": "all"}, {"enable_thinking": {"a": []}}):
        with pytest.raises(RequestError, match="chat format") as refused:
            chat.with_arguments(wrong)
        assert refused.value.param == "chat_template_kwargs" and refused.value.status == 400


def test_the_nano_format_opens_no_thinking(make: Any) -> None:
    chat = make(marker="nano")
    assert text(chat.with_arguments({"enable_thinking": False})) == text(chat)
    with pytest.raises(RequestError, match="enable_thinking"):
        chat.with_arguments({"enable_thinking": True})


def test_a_template_is_told_by_the_variables_it_reads(make: Any) -> None:
    chat = make(marker=None, chat_template=STYLED, model_type="mystery")
    terse = chat.with_arguments({"style": "ok"})
    assert text(terse) == text(chat) + "ok"
    bridged = terse.bridge(terse.render([USER], None), terse.encode("hello<|im_end|>"), [USER], None)
    assert bridged is not None and terse.decode(bridged).endswith("<|im_start|>assistant\nok")
    for name in ("messages", "bos_token", "tokenize", "chat_template", "styl"):
        with pytest.raises(RequestError, match="which takes: style"):
            chat.with_arguments({name: "x"})


def test_another_template_takes_the_place_of_the_format(make: Any) -> None:
    chat = make(marker="qwen3")
    other = chat.with_arguments({}, template=OTHER)
    assert text(other) == "user: hello<|im_end|>" and text(chat) != text(other)
    assert other.variant and other.with_arguments({}, template=OTHER) is other
    with pytest.raises(RequestError, match="no Jinja template"):
        chat.with_arguments({}, template="{% if %}")
    with pytest.raises(RequestError, match="which takes: nothing"):
        other.with_arguments({"style": 1})


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10 ** 15 }}{{ style }}",
        "{{ 'x' | center(10 ** 15) }}{{ style }}",
        "{% autoescape 'x' * 10 ** 15 %}{{ style }}{% endautoescape %}",
        "{% if 'x' * 10 ** 15 %}{{ style }}{% endif %}",
        "{% set much = 'x' * 10 ** 15 %}{{ style }}",
    ],
)
def test_what_a_template_takes_is_read_and_not_computed(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is constant may have no end: `9 ** 9 ** 9`. Here it would need a petabyte."""
    computed: list[nodes.Expr] = []
    for kind in (nodes.BinExpr, nodes.Filter):
        monkeypatch.setattr(kind, "as_const", lambda node, context=None: computed.append(node))
    assert template_names(source) == {"style"}
    assert not computed


def test_a_template_beyond_reading_is_refused() -> None:
    for source in ("{{ " + "(" * 50_000 + ")" * 50_000 + " }}", "x" * (LONGEST_TEMPLATE + 1)):
        with pytest.raises(ConfigurationError, match="the chat template"):
            template_names(source)

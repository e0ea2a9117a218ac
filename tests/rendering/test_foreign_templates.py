"""A stranger's chat template writes what it always would, and cannot use up the process that serves."""

from __future__ import annotations

from typing import Any

import pytest
from chat_families import needs_tokenizers, real, template
from test_special_tokens_in_text import HERMES, INJECTIONS, conversation

from art.errors import RequestError
from art.rendering import confined_template as foreign

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{ messages }}"
DOUBLING = (
    "{% set ns = namespace(s='abcdefgh') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
    "{{ ns.s | length }}"
)
LONG = "{% for i in range(99999) %}{{ 'abcdefghij' * 1000 }}{% endfor %}"
USER = {"role": "user", "content": "hello"}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["ok", *INJECTIONS])
def test_a_strangers_template_writes_the_same_ids(text: str) -> None:
    own = template(HERMES)
    confined = own.confined()
    assert confined.foreign and not own.foreign and confined.confined() is confined
    assert confined.variant == own.variant
    messages, tools = conversation("result", text.replace("\n", " "))
    assert confined.render(messages, tools) == own.render(messages, tools)


@pytest.mark.slow
@needs_tokenizers
@pytest.mark.parametrize("name", ["llama-3-short", "gemma-3", "smollm2"])
def test_a_real_template_writes_the_same_ids_when_it_is_a_strangers(name: str) -> None:
    own = real(name)
    confined = own.confined()
    assert confined.foreign and confined.kind == own.kind
    messages, tools = conversation("result", INJECTIONS[0].replace("\n", " "))
    assert confined.render(messages, tools) == own.render(messages, tools)


@pytest.mark.slow
@pytest.mark.parametrize("source", [LOOP, DOUBLING, LONG])
def test_a_template_without_an_end_is_refused_and_the_next_is_rendered(source: str) -> None:
    chat = template(source).confined()
    with pytest.raises(
        RequestError, match=r"exceeds what a rendering may use, \d+ (s|MiB|bytes) of"
    ) as refused:
        chat.render([USER], None)
    assert refused.value.status == 400
    assert template(HERMES).confined().render([USER], None)


@pytest.mark.slow
def test_a_helper_that_was_killed_is_started_again() -> None:
    import os
    import signal

    chat: Any = template(HERMES).confined()
    ids = chat.render([USER], None)
    pid = foreign.template_helper().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):  # the first finds out
        try:
            again = chat.render([USER], None)
        except RequestError as error:
            assert "could not be rendered" in str(error)
    assert again == ids and foreign.template_helper().pid != pid

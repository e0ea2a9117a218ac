"""`art.get_tokenizer` and `art.LocalServingUnavailableError`: names of later releases that are ours here."""

from __future__ import annotations

import subprocess
import sys

import pytest

import art
from art import errors
from art.engine.base_models import local_folder
from art.errors import ConfigurationError, MissingExtraError, WorkerDiedError
from art.rendering.registry import create_chat_renderer


async def test_the_tokenizer_is_that_of_the_server() -> None:
    tokenizer = art.get_tokenizer("art/nano-games")  # an event loop runs here
    assert tokenizer is art.get_tokenizer("art/nano-games")
    messages = [{"role": "user", "content": "hello"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids).startswith("<|im_start|>user\nhello<|im_end|>")


def test_its_ids_are_those_that_the_server_renders() -> None:
    renderer = create_chat_renderer(local_folder("art/nano"))
    text = "x: 17 <tool_call>"
    assert art.get_tokenizer("art/nano").encode(text) == renderer.encode(text)


def test_a_model_or_an_extra_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'art/nano'"):
        art.get_tokenizer("art/nanno")
    monkeypatch.setattr(errors, "is_installed", lambda module: module != "transformers")
    with pytest.raises(
        MissingExtraError, match=r"the tokenizer of 'art/nano-words' needs 'transformers'.*server"
    ):
        art.get_tokenizer("art/nano-words")


@pytest.mark.slow
def test_torch_is_not_loaded() -> None:
    program = "import sys, art; art.get_tokenizer('art/nano'); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.strip() == "False"


def test_a_worker_that_does_not_serve_is_caught_by_its_name_of_later_releases() -> None:
    for kind in (art.LocalServingUnavailableError, RuntimeError):
        with pytest.raises(kind, match="the engine died"):
            raise WorkerDiedError("the engine died")

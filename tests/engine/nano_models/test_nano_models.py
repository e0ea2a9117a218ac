from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import art.engine.nano_models
from art.engine.nano_models import resolve
from art.environments import tasks
from art.errors import ConfigurationError

NAMES = ("art/nano-games", "art/nano-tools", "art/nano-mcp", "art/nano-words")
TOKENIZERS = {name: PreTrainedTokenizerFast.from_pretrained(resolve(name)) for name in NAMES}
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
CONTROLS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


def test_names_and_alias() -> None:
    assert resolve("art/nano") == resolve("art/nano-games")
    assert len({resolve(name) for name in NAMES}) == len(NAMES)
    with pytest.raises(ConfigurationError, match=r"'art/nano-chess'.*art/nano-games"):
        resolve("art/nano-chess")


@pytest.mark.parametrize("name", NAMES)
def test_a_model_folder_is_complete(name: str) -> None:
    files = {path.name for path in resolve(name).iterdir() if path.is_file()}
    assert files == {
        *("README.md", "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    config = json.loads((resolve(name) / "config.json").read_text())
    assert config["model_type"] == "qwen3" and config["head_dim"] == 32 and config["tie_word_embeddings"]
    assert config["vocab_size"] == len(TOKENIZERS[name])


def test_all_models_together_are_at_most_eight_megabytes() -> None:
    folder = Path(art.engine.nano_models.__file__).parent
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 8_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(text=st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_survives_the_tokenizer(name: str, text: str) -> None:
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False)
    assert TOKENIZERS[name].decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("marker", MARKERS + CONTROLS)
def test_each_marker_is_one_token(name: str, marker: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert len(tokenizer.encode(marker, add_special_tokens=False)) == 1
    assert tokenizer.decode(tokenizer.encode(marker), skip_special_tokens=True) == (
        "" if marker in CONTROLS else marker
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_model_loads_in_plain_transformers_and_computes_finite_logits(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve(name))
    model = AutoModelForCausalLM.from_pretrained(resolve(name), dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=False,
    )
    logits = model(input_ids=prompt).logits
    assert logits.shape == (1, prompt.shape[1], len(tokenizer)) and bool(logits.isfinite().all())
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("task_name", "model"), [("tic-tac-toe", "art/nano-games"), ("mail", "art/nano-tools")]
)
def test_the_defaults_name_the_model_that_knows_the_task(task_name: str, model: str) -> None:
    assert tasks.find(task_name).DEFAULTS.base_model == model

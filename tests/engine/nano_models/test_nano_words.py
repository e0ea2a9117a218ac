"""The follower of short instructions: what it is taught, with which heads it begins, and what it can do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from nano.build import build
from nano.circuits import space_pairs
from nano.model import new_model
from nano.reading import WordBatches, accuracy
from nano.recipes import WORD_GATES, word_scores
from nano.vocabulary import CONTENT, HELD_OUT
from nano.words import FAMILIES, WordDialogs
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from art.engine.nano_models import resolve
from art.rendering.nano import create_nano_renderer

SEED = 77
"""A stream that neither training, nor a gate, nor the card draws from."""


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(resolve("art/nano-words"))


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(resolve("art/nano-words"), dtype=torch.float32).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_dialogs_are_the_same_for_the_same_seed(family: str) -> None:
    streams = [WordDialogs(seed) for seed in (1, 1, 2)]
    first, again, other = ([dialogs.draw(family) for _ in range(3)] for dialogs in streams)
    assert first == again != other


def test_held_out_words_are_never_in_a_fact_that_is_taught() -> None:
    dialogs = WordDialogs(0)
    for _ in range(300):
        messages = dialogs.draw("facts").messages
        replies = {message["content"] for message in messages if message["role"] == "assistant"}
        assert not replies & set(HELD_OUT)
    held_out = WordDialogs(0, known=HELD_OUT)
    assert held_out.draw("facts").messages[-1]["content"] in HELD_OUT


def test_a_word_is_one_token_with_a_space_and_one_without(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(CONTENT) >= 250
    spaced, bare = space_pairs(tokenizer)
    pairs = dict(zip(spaced.tolist(), bare.tolist(), strict=True))
    for word in CONTENT:
        (plain,) = tokenizer.encode(word, add_special_tokens=False)
        (behind,) = tokenizer.encode(f" {word}", add_special_tokens=False)
        assert pairs[behind] == plain


def test_drawn_heads_find_a_value_before_any_training(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    model = new_model("nano-words", tokenizer).eval()
    model.set_attn_implementation("eager")
    text = "atlas is red\nonyx is blue\nnova is pink\nWhat is the color of onyx?"
    ids = create_nano_renderer(tokenizer).render_ids([{"role": "user", "content": text}])
    tokens = tokenizer.convert_ids_to_tokens(ids)
    asked = len(tokens) - 1 - tokens[::-1].index("Ġonyx")
    with torch.no_grad():
        first, second, *_ = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    for back in (0, 1, 2):
        assert float(first[0, back, asked, asked - back - 1]) >= 0.95
    assert float(second[0, 2, asked, tokens.index("Ġblue")]) >= 0.9


@pytest.mark.slow
def test_a_word_and_the_word_with_its_space_learn_the_same(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    model = new_model("nano-words", tokenizer)
    batches = WordBatches(tokenizer, WordDialogs(0), 0)
    for _ in range(3):
        batches.loss(model).backward()
    spaced, bare = space_pairs(tokenizer)
    gradient = model.get_input_embeddings().weight.grad
    assert gradient is not None and float(gradient[bare].abs().sum()) > 0
    assert torch.equal(gradient[spaced], gradient[bare])


@pytest.mark.slow
def test_the_shipped_tokenizer_is_that_of_the_recipe_and_the_build_runs(tmp_path: Path) -> None:
    folder = build("nano-words", seed=3, output=tmp_path, smoke=True)
    shipped = resolve("art/nano-words")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        assert (folder / name).read_text() == (shipped / name).read_text()
    assert "| facts held out |" in (folder / "README.md").read_text()


def test_its_context_is_long(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 32_768
    assert 900_000 <= model.num_parameters() <= 1_400_000


@pytest.mark.slow
def test_nano_words_follows_as_its_card_says(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    scores = word_scores(model, tokenizer, count=64, seed=SEED)
    # Three standard errors of 64 dialogs below the gates.
    assert {name: scores[name] for name, least in WORD_GATES.items() if scores[name] < least - 0.08} == {}


@pytest.mark.slow
def test_it_finds_facts_behind_a_thousand_tokens(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert accuracy(model, tokenizer, WordDialogs(SEED), "facts", 16, filler=1000) >= 0.7

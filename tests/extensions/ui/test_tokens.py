"""Token texts are those of the model's own tokenizer; classes follow the numbers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from made_run import HALVES, TOKENIZER, ids_of, made_run

from art_extensions.ui.run_files import find_runs
from art_extensions.ui.tokens import TokenPieces, class_of, read_vocabulary, samples_of_rollout, show_samples


def test_the_halves_of_a_character_stand_together(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    pieces = read_vocabulary(tmp_path / "tokenizer.json", 0)
    assert pieces.texts(ids_of("A é B")) == ["A", " ", "", "é", " ", "B"]
    assert "".join(pieces.texts([HALVES[0]])) == "\\xc3"
    assert pieces.texts([HALVES[1], 32]) == ["\\xa9", "A"]
    assert pieces.texts([4711]) == ["⟨id 4711⟩"]


def test_texts_are_those_of_the_tokenizers_library(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
    )
    text = "größe 茶の湯 🫖 <script>alert(1)</script>\n\ttea " * 3
    backend.train_from_iterator([text], trainer)
    path = tmp_path / "tokenizer.json"
    backend.save(str(path))
    pieces = read_vocabulary(path, 0)
    assert "".join(pieces.texts(backend.encode(text).ids)) == text
    draw = random.Random(1)
    for _ in range(50):
        ids = [draw.randrange(backend.get_vocab_size()) for _ in range(draw.randrange(1, 9))]
        assert len(pieces.texts(ids)) == len(ids)


def test_words_of_sentence_pieces_and_bytes_are_spelt() -> None:
    pieces = TokenPieces({1: "\u2581the", 2: "<0xC3>", 3: "<0xA9>"}, False, frozenset())
    assert pieces.texts([1, 2, 3]) == [" the", "", "é"]


def test_samples_have_the_numbers_of_ledger_and_record(tmp_path: Path) -> None:
    made_run(tmp_path)
    (run,) = find_runs(tmp_path).values()
    assert samples_of_rollout(run, "s2a") == ["s2a-0", "s2a-1"]
    first, second = show_samples(run, 2, ["s2a-0", "missing", "s2a-1"])
    assert "".join(one.text for one in first.tokens) == "the tea<|im_end|>" and first.before == "WHO "
    assert first.tokens[0].classes == "l0" and first.tokens[1].classes == "l2"
    assert second.ledger.fork == "edited" and second.number == 2
    begin, *_, end = second.tokens
    assert begin.numbers["mask"] == "masked" and begin.classes == "l0 r0 a0 e0 m-masked"
    assert end.numbers["mask"] == "trained" and end.classes == "l4 r4 a4 e4 m-trained"
    assert second.tokens[1].numbers["mask"] == "clipped"


@pytest.mark.parametrize(
    ("value", "expected"), [(-9.0, 0), (-1.0, 1), (0.0, 2), (0.5, 3), (1.0, 4), (9.0, 4)]
)
def test_classes_ascend(value: float, expected: int) -> None:
    assert class_of(value, (-1.0, -1e-6, 1e-6, 1.0)) == expected


def test_a_damaged_ledger_or_record_shows_no_tokens(tmp_path: Path) -> None:
    made = made_run(tmp_path)
    (made.model / "steps" / "0002" / "tokens.safetensors").write_bytes(b"\x00" * 64)
    (run,) = find_runs(tmp_path).values()
    assert [one.tokens[0].classes for one in show_samples(run, 2, ["s2a-1"])] == ["l0"]
    (tmp_path / "server" / "ledger.sqlite").write_bytes(b"garbage")
    assert show_samples(run, 2, ["s2a-1"]) == []

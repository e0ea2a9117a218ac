"""The programs take a real model's folder: Qwen3's files at their real size, apart from the weights.

The weights are random and few. The vocabulary has all of its 151,936 rows, the tokenizer and its markers have
Qwen3's ids, and nothing names a model that ships with the package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice, pairwise, product
from pathlib import Path
from string import ascii_lowercase

import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from art.rendering.registry import create_chat_renderer

EXAMPLES = Path(__file__).parents[3] / "examples"
TEXT_TOKENS, ROWS = 151_643, 151_936
"""Tokens without markers, and rows of the embedding, which is padded."""
MARKERS = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> "
    "<|file_sep|> <tool_response> </tool_response> <think> </think>"
).split()
"""Their ids follow those of the text."""
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
)
TEMPLATE = (
    "{%- for one in messages %}"
    "{{- '<|im_start|>' + one.role + '\\n' + one.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)
PROGRAM = """import sys, art, help_desk, production_feedback as program
help_desk.PROMPTS, program.EACH = 16, 1
art.run(program.main(program.read_options(sys.argv[1:])))"""
"""The program with few questions: the replies of random weights teach nothing."""
START, END = TEXT_TOKENS + 1, TEXT_TOKENS + 2


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE whose merges make pairs, triples and fours of letters, as many as there are places."""
    vocab = {piece: number for number, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for length in (2, 3, 4):
        made = islice(product(ascii_lowercase, repeat=length), TEXT_TOKENS - len(vocab))
        for letters in map("".join, made):
            merges.append((letters[:-1], letters[-1]))
            vocab[letters] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [AddedToken(marker, special=marker[1] == "|", normalized=False) for marker in MARKERS]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 131_072,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `hf download` of a small Qwen3 leaves: configurations, weights in bfloat16, a tokenizer."""
    folder = tmp_path_factory.mktemp("hub") / "Qwen3-tiny"
    folder.mkdir()
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=ROWS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
        bos_token_id=TEXT_TOKENS,
        eos_token_id=END,
    )
    Qwen3ForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
    sampling = {"do_sample": True, "eos_token_id": [END, TEXT_TOKENS], "temperature": 0.6, "top_k": 20}
    (folder / "generation_config.json").write_text(json.dumps(sampling))
    write_tokenizer(folder)
    return folder


@pytest.mark.slow
def test_the_files_are_read_as_those_of_qwen3(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == TEXT_TOKENS + len(MARKERS)
    assert tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "</think>"]) == [
        START,
        END,
        151_668,
    ]
    renderer = create_chat_renderer(folder)
    assert renderer.kind == "Qwen3Renderer"
    assert renderer.render([{"role": "user", "content": "Is this my boat?"}], None)[0] == START


@pytest.mark.slow
def test_a_program_trains_a_model_by_its_path(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "--model", str(folder), "--path", str(tmp_path)]
    command += ["--steps", "1", "--demonstrations", "16", "--learning-rate", "1e-4", "--sft-rate", "1e-4"]
    done = subprocess.run(
        command,
        cwd=EXAMPLES / "production_feedback",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "production_feedback-0@3 is refused" in done.stdout

    model = tmp_path / "production_feedback" / "models" / "production_feedback-0"
    assert json.loads((model / "registration.json").read_text())["base_model"] == str(folder)
    steps = [load_file(path) for path in sorted(model.glob("checkpoints/*/adapter_model.safetensors"))]
    assert len(steps) == 4
    for before, after in pairwise(steps):
        assert any((before[name] != after[name]).any() for name in before), "a step that changed nothing"

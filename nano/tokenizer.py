"""Byte-level BPE tokenizers with Qwen3's chat markers, trained on the words of the tasks.

Every word of a task becomes one token, the same wherever it stands: copying a word from the prompt into a
reply, which is most of what a tool-using agent does, is learned only if both have the same id. So the
pre-tokenizer keeps spaces apart from words and cell names, and keeps the fixed parts of a tool call whole.
Any other text falls back to bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from art.rendering.nano import CHAT_TEMPLATE, RENDERER_KEY, RENDERER_NAME

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

REST = r"|[0-9]|\s|[^\sA-Za-z0-9]"
"""Digits, white space and signs: one character each."""

GAMES_PATTERN = r"  1 2 3|[A-C][1-3]| [XO.](?![A-Za-z])| ?(?![A-C][1-3])[A-Za-z]+" + REST
"""A board is 4 tokens a row; the name of a cell is one token without its space."""

TOOLS_PATTERN = r'\n\{"name": "|", "arguments": \{"|": "|"\}\}\n|[A-Za-z]+' + REST
"""A call `<tool_call>..</tool_call>` with one text argument is nine tokens."""


MCP_PATTERN = r'\n\{"name": "|", "arguments": \{"|": "|", "|"\}\}\n|[A-Za-z_]+' + REST
"""As `TOOLS_PATTERN`, with several arguments, and one token for names such as `list_places`."""

WORDS_PATTERN = (
    r'\n\{"name": "|", "arguments": \{"|", "arguments": \{\}\}\n|": "|"\}\}\n|", "|'
    r" ?->|'s| ?[A-Za-z]+| ?[0-9]|\n- |\s|[^\sA-Za-z0-9]"
)
"""As `MCP_PATTERN`, but a word and the space before it are one piece: half as many tokens. A word with a
space and one without are two tokens, which are taught as one (`nano.circuits.share_rows`)."""


def train_tokenizer(pattern: str, texts: list[str]) -> Tokenizer:
    """A tokenizer in which every piece that `pattern` cuts out of `texts` is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_length: int) -> PreTrainedTokenizerFast:
    """Write tokenizer.json and tokenizer_config.json to `folder` and load them as `transformers` does."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        RENDERER_KEY: RENDERER_NAME,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": ["<|im_start|>"],
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n")
    return PreTrainedTokenizerFast.from_pretrained(folder)

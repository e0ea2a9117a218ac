"""A tokenizer folder of our own: byte-level, a few merges, Qwen3's markers. No download."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

MARKERS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
SPECIAL = MARKERS[:3]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "t"), ("o", "k"), ("a", "n")]

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_chat_folder(
    folder: Path,
    *,
    marker: str | None = "qwen3",
    chat_template: str | None = None,
    model_type: str = "qwen3",
    markers: tuple[str, ...] = MARKERS,
) -> Path:
    """Write tokenizer.json, tokenizer_config.json and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: n for n, piece in enumerate(pieces)}, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(m, special=m in SPECIAL, normalized=False) for m in markers])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "clean_up_tokenization_spaces": False}
    if marker is not None:
        config["art_renderer"] = marker
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    return folder

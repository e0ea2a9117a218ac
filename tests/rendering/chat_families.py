"""Every chat format: Qwen 3, Llama 3.1, gpt-oss, Gemma 3 and SmolLM2 over their real tokenizers, others
of the library `renderers` over a tokenizer of our own that has all their markers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from renderers.base import create_renderer
from renderers.configs import config_from_name
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer
from art.rendering.template import TemplateRenderer, make_template_renderer
from art.rendering.tokenizer import FastTokenizer

TOKENIZERS = Path(__file__).parents[2] / ".venv-tokenizers"
REAL = ("qwen3", "llama-3", "llama-3-short", "gpt-oss", "gemma-3", "smollm2")
"""Folders of `install_tokenizers.py`. `llama-3-short` has the package's short template, without tools."""
MISSING = not (TOKENIZERS / ".installed").exists() and not os.environ.get("ART_TEST_EVERYTHING")
needs_tokenizers = pytest.mark.skipif(MISSING, reason="no tokenizers: `make .venv-tokenizers/.installed`")
os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", str(TOKENIZERS / "harmony"))  # of openai-harmony

OWN = (
    "qwen3.5",
    "qwen3.6",
    "prime-qwen3",
    "glm-4.5",
    "glm-5",
    "deepseek-v3",
    "deepseek-r1",
    "gemma4",
    "kimi-k2",
    "minimax-m2",
    "nemotron-3",
)
FAMILIES = (*REAL, *OWN)

WITHOUT_THOUGHTS = frozenset({"llama-3", "llama-3-short", "gemma-3", "smollm2", "deepseek-v3", "kimi-k2"})
"""Formats that have no place for reasoning."""
CALLS_ALONE = frozenset({"llama-3"})
"""Formats in which a turn is text or a call, not both."""

MARKERS = """
<|endoftext|> <|im_start|> <|im_end|> <think> </think> <tool_call> </tool_call> <tool_response>
</tool_response> <|image_pad|> <|video_pad|> <|vision_start|> <|vision_end|> <|begin_of_text|>
<|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|> [gMASK]
<sop> <|system|> <|user|> <|assistant|> <|observation|> <arg_key> </arg_key> <arg_value>
</arg_value> <｜User｜> <｜Assistant｜> <｜begin▁of▁sentence｜> <｜end▁of▁sentence｜>
<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜>
<｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> <bos>
<eos> <|turn> <turn|> <|channel> <channel|> <|tool> <tool|> <|tool_call> <tool_call|>
<|tool_response> <tool_response|> <|think|> <|image> <image|> <|image|> <|"|> <|im_system|>
<|im_user|> <|im_assistant|> <|im_middle|> <|tool_calls_section_begin|> <|tool_calls_section_end|>
<|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|> [BOS] [EOS] [EOT] ]~!b[ ]~b] [e~[
<minimax:tool_call> </minimax:tool_call>
""".split()
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "t"), ("Ċ", "Ċ"), ("o", "k")]
"""Two line feeds are one token, which is where openings of turns and replies grow together."""


TOOL_MARKERS = frozenset({"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"})


@lru_cache(maxsize=2)
def tokenizer(chat_template: str | None = None, markers: tuple[str, ...] = tuple(MARKERS)) -> Any:
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    made = Tokenizer(models.BPE(vocab={piece: n for n, piece in enumerate(pieces)}, merges=MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    fast.chat_template = chat_template
    return fast


def each(names: Iterable[str]) -> list[Any]:
    """Names of formats as parameters of tests: a real tokenizer takes a second to load."""
    marks = (pytest.mark.slow, needs_tokenizers)
    return [pytest.param(name, marks=marks if name in REAL else ()) for name in names]


@lru_cache
def real(name: str) -> LibraryRenderer:
    """What the server makes of the folder of a model; once a session, for it takes a second."""
    return create_chat_renderer(TOKENIZERS / name)


def family(name: str, **options: Any) -> LibraryRenderer:
    """The renderer of a family, as the server makes it: sampled thoughts stay in the history."""
    if name in REAL:
        return real(name).with_arguments(options)
    return of_own(name, **options)


def of_own(name: str, **options: Any) -> LibraryRenderer:
    """The renderer of a family over our own tokenizer, whose vocabulary is small."""
    fast = FastTokenizer(tokenizer())
    plain = config_from_name(name)
    return LibraryRenderer(create_renderer(fast, type(plain)(thinking_retention="all", **options)), fast)


def template(chat_template: str) -> LibraryRenderer:
    """The fallback for a model of which only the chat template is known."""
    made = tokenizer.__wrapped__(chat_template)
    return LibraryRenderer(TemplateRenderer(made), FastTokenizer(made))


@lru_cache(maxsize=2)
def generic(chat_template: str, *, tool_markers: bool) -> LibraryRenderer:
    """The format of a template without tools, over a vocabulary that has the tags of calls or lacks them."""
    markers = tuple(marker for marker in MARKERS if tool_markers or marker not in TOOL_MARKERS)
    made = tokenizer.__wrapped__(chat_template, markers)
    return LibraryRenderer(make_template_renderer(made), FastTokenizer(made))

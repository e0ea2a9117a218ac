"""The tokenizer of a GGUF file, as transformers keeps it.

Byte-level BPE (Llama 3, Qwen, SmolLM, GPT-OSS and most others) is built here, from the file's vocabulary, its
merges and the name of the rule by which texts are split; releases of transformers differ in what they make of
these rules, and know some of them only. All other kinds are transformers' own conversion. In the end each id
must stand for the token that the file names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from art.errors import ConfigurationError
from art.process.imports import import_lock
from art_extensions.gguf.header import GgufHeader

CONTROL, USER_DEFINED = 3, 4
"""Types of tokens: special, and plain but never cut."""
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
ENDS = ("eos", "eot", "eom")
"""Tokens that end a reply: of the text, of the turn, of the message before a tool answers."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O = _WORD.replace("{0}", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?") + r"|\p{N}{1,3}" + _REST
_TEKKEN = _WORD.replace("{0}", "") + r"|\p{N}" + _REST
_DIGIT = r"\p{N}"
_LLAMA3_LIKE = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2")

SPLITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("gpt-2", "olmo", "mpt"), (_GPT2,)),
        **dict.fromkeys(("smollm", "refact", "starcoder", "command-r", "codeshell"), (_DIGIT, _GPT2)),
        **dict.fromkeys(
            (
                "llama3",
                "llama-v3",
                "llama-bpe",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "lfm2",
                "dbrx",
                "smaug-bpe",
            ),
            (_LLAMA3,),
        ),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), (_QWEN2,)),
        "qwen35": (_QWEN35,),
        **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O,)),
        "tekken": (_TEKKEN,),
    }
)
"""The name that llama.cpp gives a rule (`tokenizer.ggml.pre`) -> the patterns that split a text, in order."""
WHOLE_WORDS = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"}
)
"""Rules under which a word that is in the vocabulary is one token, whatever the merges say."""
COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen", "qwen35", "megrez"})
"""Rules of models whose own tokenizers compose characters and accents (NFC) before they split."""


def read_tokenizer(header: GgufHeader) -> Any:
    """Returns a `PreTrainedTokenizerFast`. Raises ConfigurationError: there is none in the file, its kind or
    its rule is unknown, or an id would not stand for the file's token.
    """
    kind = header.require("tokenizer.ggml.model", "tokenizer")
    tokens = header.require("tokenizer.ggml.tokens", "vocabulary")
    tokenizer = _byte_level(header, tokens) if kind == "gpt2" else _by_transformers(header, kind)
    names = tokenizer.convert_ids_to_tokens(range(len(tokens)))
    spelled = [_as_spelled(token) for token in names] if kind != "gpt2" else names
    wanted = [_as_spelled(token) for token in tokens] if kind != "gpt2" else tokens
    for number, (ours, theirs) in enumerate(zip(spelled, wanted, strict=True)):
        if ours != theirs:
            raise ConfigurationError(
                f"{header.path}: id {number} is {theirs!r} in the file and {ours!r} in the tokenizer made of "
                "it. Take the model's folder in safetensors as base_model"
            )
    return tokenizer


def stop_ids(header: GgufHeader) -> list[int]:
    """Returns the ids that end a reply."""
    found = (header.values.get(f"tokenizer.ggml.{name}_token_id") for name in ENDS)
    return list(dict.fromkeys(int(one) for one in found if one is not None))


def _as_spelled(token: str | None) -> str | None:
    """Spaces are written in two ways in vocabularies of SentencePiece."""
    return None if token is None else token.replace("\u2581", " ")


def _byte_level(header: GgufHeader, tokens: Sequence[str]) -> Any:
    with import_lock:
        from transformers import PreTrainedTokenizerFast

    rule = str(header.require("tokenizer.ggml.pre", "rule by which texts are split"))
    if rule not in SPLITS:
        raise ConfigurationError(
            f"{header.path}: texts are split by the rule {rule!r}, which is not known here, so its ids would "
            f"not be the model's. Known: {', '.join(sorted(SPLITS))}. Take the model's folder in safetensors"
        )
    merges = [tuple(one.split(" ", 1)) for one in header.require("tokenizer.ggml.merges", "merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rule in WHOLE_WORDS, fuse_unk=False)
    )
    if rule in COMPOSED:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in SPLITS[rule]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    types = header.values.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    for token, number in zip(tokens, types, strict=True):
        added = AddedToken(token, normalized=False, special=number == CONTROL)
        if number == CONTROL:
            backend.add_special_tokens([added])
        elif number == USER_DEFINED:
            backend.add_tokens([added])
    named = {name: _named_token(header, tokens, key) for name, key in SPECIAL.items()}
    backend.post_processor = _around(header, tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=header.values.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **{name: token for name, token in named.items() if token is not None},
    )


def _named_token(header: GgufHeader, tokens: Sequence[str], key: str) -> str | None:
    number = header.values.get(f"tokenizer.ggml.{key}_token_id")
    return None if number is None or not 0 <= number < len(tokens) else tokens[number]


def _around(header: GgufHeader, tokens: Sequence[str]) -> Any:
    """Returns what the file wants around a text: its first token, its last one, or nothing."""
    before, after = (
        _named_token(header, tokens, key) if header.values.get(f"tokenizer.ggml.add_{key}_token") else None
        for key in ("bos", "eos")
    )
    parts = [*([before] if before else []), "$A", *([after] if after else [])]
    around = {token: tokens.index(token) for token in (before, after) if token is not None}
    if not around:
        return processors.ByteLevel(trim_offsets=False)
    return processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=" ".join(parts), pair=" ".join([*parts, "$B"]), special_tokens=list(around.items())
            ),
        ]
    )


def _by_transformers(header: GgufHeader, kind: str) -> Any:
    with import_lock:
        from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(header.path.parent), gguf_file=header.path.name)
    except (ValueError, KeyError, NotImplementedError, TypeError, IndexError, OSError) as error:
        raise ConfigurationError(
            f"{header.path} has a tokenizer of the kind {kind!r}, which transformers does not read "
            f"({error}). Take the model's folder in safetensors as base_model"
        ) from error
    tokenizer.chat_template = header.values.get("tokenizer.chat_template")
    return tokenizer

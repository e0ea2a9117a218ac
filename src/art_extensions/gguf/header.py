"""What a GGUF file says of itself, checked before any weight is read: it is whole, its tensors can be read,
its architecture is known, and what its conversion needs.

It is read here and not by `gguf.GGUFReader`, which takes seconds for a vocabulary and tells a part of a file
by whichever error comes first. The families of `PLAIN` are configured and dequantized here too, tensor by
tensor, in a half or less of the time and memory of transformers, which reads all others.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from art.errors import ConfigurationError
from art.process.imports import import_lock

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
TEXT, LIST = 8, 9
CODES: Mapping[int, str] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)
"""Kinds of metadata, and what `struct` calls them."""
COMMON = "such as Q8_0 or Q4_K_M"
FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16}
"""Types of matrices that are stored as they are. All others fit float16: `stored_dtype`."""
ROPE_FACTORS = "rope_freqs.weight"
FACTOR_TOLERANCE = 1e-3
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PLAIN: Mapping[str, str] = MappingProxyType({"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"})
"""Architectures whose tensors are the parameters of transformers -> what transformers calls them."""
FIGURES: Mapping[str, str] = MappingProxyType(
    {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "attention.key_length": "head_dim",
    }
)
"""Figures of a configuration: llama.cpp's names -> those of transformers."""
WORKING_MEMORY = 1 << 30
"""Bytes: torch, transformers, the vocabulary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufTensor:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    """The shape in the order of torch: the last number is the length of a row."""
    type: Any
    """The member of `gguf.GGMLQuantizationType`."""
    bytes: np.ndarray
    """A view of the file, a row of bytes for each row of numbers; it is read when it is used."""

    @property
    def numbers(self) -> int:
        return prod(self.shape)

    def rows(self, most: int | None = None) -> np.ndarray:
        """Returns the numbers in float32, or the first rows of them. Raises NotImplementedError for a type
        that cannot be dequantized.
        """
        with import_lock:
            from gguf import dequantize

        # What is not quantized is a view of the file, which nobody may write into.
        return np.require(dequantize(self.bytes[:most], self.type), dtype=np.float32, requirements="W")


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """The header of a file, and where its tensors are."""

    path: Path
    values: dict[str, Any]
    """Its metadata: numbers, texts and lists."""
    tensors: list[GgufTensor]

    @property
    def architecture(self) -> str:
        return str(self.values["general.architecture"])

    @property
    def parameters(self) -> int:
        """The weights: without the factors of rotary embeddings, which follow from the configuration."""
        return sum(one.numbers for one in self.tensors if not one.name.startswith("rope_"))

    @property
    def largest(self) -> int:
        """Numbers of the largest tensor."""
        return max((one.numbers for one in self.tensors), default=0)

    @cached_property
    def types(self) -> Counter[str]:
        """The numbers of each type of tensor."""
        found = Counter[str]()
        for one in self.tensors:
            found[one.type.name] += one.numbers
        return found

    @property
    def stored_dtype(self) -> torch.dtype:
        """The smallest dtype that loses nothing that matters.

        A quantized value is a scale in float16 times a small whole number, and rounding it to float16 moves
        it by far less than the step between two such values. bfloat16 would not: it has three bits less.
        """
        matrices = {one.type.name for one in self.tensors if len(one.shape) > 1}
        return FLOATS[matrices.pop()] if len(matrices) == 1 and matrices <= set(FLOATS) else torch.float16

    @property
    def memory_needed(self) -> int:
        """Bytes of the conversion: all weights in the dtype that is stored (twice where transformers reads
        them), and the largest tensor on its way there.
        """
        copies = 1 if self.architecture in PLAIN else 2
        return copies * self.parameters * self.stored_dtype.itemsize + 12 * self.largest + WORKING_MEMORY

    def require(self, key: str, what: str) -> Any:
        """Returns a value of the metadata. Raises ConfigurationError where it is missing."""
        if key not in self.values:
            raise ConfigurationError(f"{self.path} has no {what} (its metadata lack {key!r})")
        return self.values[key]


class _Cursor:
    """Reads a mapped file from front to back. Every read is checked: struct.error beyond the end."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.at = 0

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.content, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def numbers(self, code: str, count: int) -> list[Any]:
        size = struct.calcsize(f"<{code}")
        if count * size > len(self.content) - self.at:
            raise struct.error(f"{count} numbers beyond the end")
        found = struct.unpack_from(f"<{count}{code}", self.content, self.at)
        self.at += count * size
        return list(found)

    def text(self) -> str:
        length = self.number("Q")
        if length > len(self.content) - self.at:
            raise struct.error(f"a text of {length} bytes beyond the end")
        self.at += length
        return self.content[self.at - length : self.at].decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            return self.text()
        if kind != LIST:
            return self.number(CODES[kind])
        inner, count = self.number("I"), self.number("Q")
        if inner in CODES:
            return self.numbers(CODES[inner], count)
        return [self.value(inner) for _ in range(count)]


def read_header(path: Path) -> GgufHeader:
    """Reads and checks. Raises ConfigurationError: not a GGUF file, damaged, of several parts, or with
    tensors of a type that nobody reads.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise ConfigurationError(f"{path} is no GGUF file: it begins with {magic!r}, not with {MAGIC!r}")
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        header = _read(path, content)
    except (
        struct.error,
        LookupError,
        ValueError,
        TypeError,
        ArithmeticError,
        MemoryError,
        RecursionError,
    ) as error:
        raise ConfigurationError(
            f"{path} is damaged or only a part of a file ({size:,} bytes; {error!r}): download it again, and "
            "compare its size"
        ) from error
    header.require("general.architecture", "architecture")
    if header.values.get("split.count", 1) > 1:
        raise ConfigurationError(
            f"{path} is one of {header.values['split.count']} parts: join them by `llama-gguf-split --merge`"
        )
    if not header.tensors:
        raise ConfigurationError(f"{path} has no weights: it holds metadata or a vocabulary alone")
    check_types(header)
    return header


def _read(path: Path, content: mmap.mmap) -> GgufHeader:
    cursor = _Cursor(content)
    cursor.at = len(MAGIC)
    version, tensors, values = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
    if version not in VERSIONS:
        raise ConfigurationError(
            f"{path} is of version {version} of the format; versions {', '.join(map(str, VERSIONS))} are read"
        )
    metadata = {cursor.text(): cursor.value(cursor.number("I")) for _ in range(values)}
    table = [_tensor_row(cursor) for _ in range(tensors)]
    alignment = int(metadata.get("general.alignment", ALIGNMENT))
    start = -(-cursor.at // alignment) * alignment
    data = np.frombuffer(content, dtype=np.uint8)
    found = [_view(path, data, start, *row) for row in table]
    return GgufHeader(path=path, values=metadata, tensors=found)


def _tensor_row(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Returns name, shape, number of the type, offset."""
    name = cursor.text()
    shape = tuple(reversed(cursor.numbers("Q", cursor.number("I"))))
    return name, shape, cursor.number("I"), cursor.number("Q")


def _view(
    path: Path, data: np.ndarray, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> GgufTensor:
    with import_lock:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        type = GGMLQuantizationType(kind)
        block, size = GGML_QUANT_SIZES[type]
    except (ValueError, KeyError) as error:
        raise ConfigurationError(
            f"{path} has tensors of an unknown type (number {kind}, such as {name}): update the package "
            f"`gguf`, or take a file of another quantization, {COMMON}"
        ) from error
    row = shape[-1] // block * size
    rows = prod(shape[:-1])
    begin, end = start + offset, start + offset + rows * row
    if shape[-1] % block or end > len(data):
        raise ValueError(f"tensor {name} ends at byte {end:,}")
    return GgufTensor(name=name, shape=shape, type=type, bytes=data[begin:end].reshape(rows, row))


def check_types(header: GgufHeader) -> None:
    """Raises ConfigurationError for a type that cannot be dequantized."""
    for name, tensor in {one.type.name: one for one in header.tensors}.items():
        try:
            tensor.rows(1)
        except NotImplementedError as error:
            raise ConfigurationError(
                f"{header.path}: tensors of type {name} (such as {tensor.name}) cannot be dequantized. Take "
                f"a file of another quantization, {COMMON}"
            ) from error


def read_config(header: GgufHeader) -> Any:
    """Returns the configuration of transformers. Raises ConfigurationError for an unknown architecture, and
    for positions that are scaled in an unknown way.
    """
    config = (_plain_config if header.architecture in PLAIN else _config_by_transformers)(header)
    scaling = _rope_scaling(header, config)
    if scaling is not None:
        config.rope_parameters = {**config.rope_parameters, **scaling}
    return config


def _plain_config(header: GgufHeader) -> Any:
    with import_lock:
        from transformers import AutoConfig

    prefix, names = header.architecture, {one.name for one in header.tensors}
    figures = {
        theirs: header.values[key]
        for ours, theirs in FIGURES.items()
        if (key := f"{prefix}.{ours}") in header.values
    }
    embedding = next((one for one in header.tensors if one.name == "token_embd.weight"), None)
    if (
        embedding is None or len(figures) < len(FIGURES) - 2
    ):  # head_dim and key/value heads follow from others
        raise ConfigurationError(
            f"{header.path} lacks figures of its architecture {prefix!r}: it has "
            f"{', '.join(figures) or 'none'}, and of its tensors {len(names)}"
        )
    if "blk.0.attn_q.bias" in names and prefix == "llama":
        figures["attention_bias"] = True
    ids = {
        f"{name}_token_id": header.values.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    return AutoConfig.for_model(
        PLAIN[prefix],
        vocab_size=embedding.shape[0],
        tie_word_embeddings="output.weight" not in names,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": float(header.values.get(f"{prefix}.rope.freq_base", 10000.0)),
        },
        **figures,
        **ids,
    )


def _config_by_transformers(header: GgufHeader) -> Any:
    with import_lock:
        from transformers import AutoConfig
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        config = AutoConfig.from_pretrained(str(header.path.parent), gguf_file=header.path.name)
    except (ValueError, KeyError, NotImplementedError, IndexError, TypeError) as error:
        raise ConfigurationError(
            f"{header.path} has the architecture {header.architecture!r}, whose GGUF files transformers does "
            f"not read ({error}). Take the model's folder in safetensors as base_model"
        ) from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ConfigurationError(
            f"{header.path} has the architecture {header.architecture!r}, which is no causal language model"
        )
    return config


def _rope_scaling(header: GgufHeader, config: Any) -> dict[str, Any] | None:
    """Returns how rotary embeddings are scaled, where the file says it and transformers leaves it out."""
    key = f"{header.architecture}.rope.scaling."
    kind = header.values.get(f"{key}type")
    factors = next((one for one in header.tensors if one.name == ROPE_FACTORS), None)
    if factors is not None:
        return _llama3_rope(header, config, factors.rows(1)[0])
    if kind in (None, "none") or config.rope_parameters.get("rope_type", "default") != "default":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": float(header.values.get(f"{key}factor", 1.0))}
    if kind == "linear":
        return scaling
    if kind == "yarn":
        original = header.require(f"{key}original_context_length", "length of its first training")
        return {**scaling, "original_max_position_embeddings": int(original)}
    raise ConfigurationError(
        f"{header.path}: positions scaled by {kind!r} are not read. Take the model's folder in safetensors"
    )


def _llama3_rope(header: GgufHeader, config: Any, factors: np.ndarray) -> dict[str, Any]:
    """Returns the rule that gives these factors of the frequencies. Raises ConfigurationError."""
    with import_lock:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {**LLAMA3_ROPE, "factor": float(factors.max())}
    plain = config.rope_parameters["rope_theta"] ** -(torch.arange(len(factors)) / len(factors))
    ruled = type(config).from_dict(
        {**config.to_dict(), "rope_parameters": {**config.rope_parameters, **scaling}}
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](ruled, torch.device("cpu"))
    if not np.allclose((plain / scaled).numpy(), factors, rtol=FACTOR_TOLERANCE):
        raise ConfigurationError(
            f"{header.path}: the factors of its rotary embeddings ({ROPE_FACTORS}) are not those of Llama 3. "
            "Take the model's folder in safetensors as base_model"
        )
    return scaling

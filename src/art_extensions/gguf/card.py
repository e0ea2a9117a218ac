"""The model card of a converted GGUF file: where it is from, its license, and what the quantization cost."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from art_extensions.gguf.header import GgufHeader

SAMPLED_ROWS = 64
"""Rows of a tensor that the figures of the card are measured on."""


def card_text(header: GgufHeader, source: str, digest: str) -> str:
    """Returns README.md."""
    values = header.values
    license = values.get("general.license")
    named = values.get("general.name") or header.path.stem
    front = {"license": license} if license else {}
    facts = [
        f"- Made from: `{source}` ({header.path.name}, {header.path.stat().st_size:,} bytes)",
        f"- SHA-256 of that file: `{digest}`",
        f"- Architecture: {header.architecture}, {header.parameters:,} parameters",
        f"- License, as the file's metadata say: {license or 'not said'}",
        *_origin(values),
        f"- Chat template: {'the one' if values.get('tokenizer.chat_template') else 'none'} in the file",
    ]
    lines = [f"{name}: {json.dumps(value)}" for name, value in front.items()]
    return "\n".join(
        [
            *(["---", *lines, "---", ""] if lines else []),
            f"# {named}",
            "",
            "A GGUF file, dequantized into a folder that trainer and engines load. Nothing else was changed.",
            "",
            *facts,
            "",
            "## What the quantization cost",
            "",
            "The weights before quantization are not in the file, so what it cost in quality cannot be "
            "measured from it. Compare with the original model on your own task. Measured from the file:",
            "",
            *_type_table(header),
            "",
            _stored(header),
            "",
        ]
    )


def _origin(values: dict[str, Any]) -> list[str]:
    facts = {
        "organization": values.get("general.organization"),
        "fine-tuned as": values.get("general.finetune"),
        "repository": values.get("general.repo_url") or values.get("general.source.url"),
        "base": values.get("general.base_model.0.repo_url"),
        "author": values.get("general.author"),
    }
    return [f"- {name.capitalize()}, as the file says: {value}" for name, value in facts.items() if value]


def _type_table(header: GgufHeader) -> list[str]:
    rows = [
        "| type | tensors | weights | bits a weight | values in a row, mean | rounding to what is stored |",
        "|---|---|---|---|---|---|",
    ]
    for name, count in header.types.most_common():
        tensors = [one for one in header.tensors if one.type.name == name]
        bits = 8 * sum(one.bytes.size for one in tensors) / count
        largest = max(tensors, key=lambda one: one.numbers)
        start = largest.rows(SAMPLED_ROWS)
        distinct = float(np.mean([len(np.unique(row)) for row in start]))
        rows.append(
            f"| {name} | {len(tensors)} | {count:,} | {bits:.2f} | {distinct:,.0f} of {start.shape[-1]:,} | "
            f"{_rounding(start, header.stored_dtype):.1e} |"
        )
    return rows


def _rounding(values: np.ndarray, dtype: torch.dtype) -> float:
    """Returns the relative error (root mean square) of storing the values."""
    exact = torch.from_numpy(values).double()
    error = (exact.to(dtype).double() - exact).norm() / exact.norm().clamp_min(1e-300)
    return float(error)


def _stored(header: GgufHeader) -> str:
    dtype = str(header.stored_dtype).removeprefix("torch.")
    return (
        f"Weights are stored in {dtype}, the smallest type that loses nothing that matters. The last two "
        f"columns are of the first {SAMPLED_ROWS} rows of the largest tensor of each type: how many "
        f"different values a row has, and the relative error (root mean square) of rounding them to {dtype}."
    )

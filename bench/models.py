"""The models that benchmarks run on: random weights, since speed does not depend on what was learned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Qwen3Config, set_seed

from art.wire.training import LoraSpec

Shape = Mapping[str, int]
NANO: Shape = MappingProxyType(
    {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
    }
)
"""That of art/nano-games."""
SMALL: Shape = MappingProxyType(
    {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }
)
"""About 3 M parameters."""


def qwen3(shape: Shape, *, vocabulary: int, positions: int) -> Qwen3Config:
    return Qwen3Config(
        **shape, vocab_size=vocabulary, max_position_embeddings=positions, tie_word_embeddings=True
    )


def save_model(config: Qwen3Config, folder: Path) -> Path:
    """A model folder as transformers writes it."""
    set_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def save_adapter(model: Path, folder: Path) -> Path:
    """An adapter in PEFT's format whose B matrices are not zero, so that every gradient is not."""
    spec = LoraSpec()
    torch.manual_seed(1)
    peft = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model),
        LoraConfig(r=spec.r, lora_alpha=spec.alpha, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    for name, parameter in peft.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    peft.save_pretrained(folder)
    return folder

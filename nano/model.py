"""The two model sizes, and writing a model as a folder that `transformers` and vLLM load."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

MAX_POSITIONS = 1024

SIZES = {
    "nano-games": {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 192,
    },
    "nano-tools": {
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 384,
    },
}
SIZES["nano-mcp"] = SIZES["nano-tools"]


def new_model(name: str, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained model of the size `name`, drawn from torch's generator. Heads of 32: vLLM's CPU kernels
    take no smaller ones."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_hidden_layers=3,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES[name],
    )
    return Qwen3ForCausalLM(config).float()


def rounded(model: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
    """The model as it will be after it was saved in bfloat16 and loaded in float32:

    what the gates measure.
    """
    copy = Qwen3ForCausalLM(model.config).float()
    copy.load_state_dict({name: tensor.bfloat16().float() for name, tensor in model.state_dict().items()})
    return copy.eval()


def save_model(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors (bfloat16) to `folder`."""
    copy = Qwen3ForCausalLM(model.config).bfloat16()
    copy.load_state_dict({name: tensor.bfloat16() for name, tensor in model.state_dict().items()})
    copy.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    copy.save_pretrained(folder)


def set_up_torch(seed: int) -> None:
    """One thread, deterministic algorithms, a seeded generator:

    the same weights on every run of one machine.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)

"""Small GGUF files: real weights and a real tokenizer, written by the `gguf` package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from transformers import AutoModelForCausalLM

from art.engine.nano_models import resolve

FIGURES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TYPES = {
    "F32": GGMLQuantizationType.F32,
    "F16": GGMLQuantizationType.F16,
    "BF16": GGMLQuantizationType.BF16,
    "Q8_0": GGMLQuantizationType.Q8_0,
    "Q4_1": GGMLQuantizationType.Q4_1,
    "Q4_0": GGMLQuantizationType.Q4_0,
    "Q5_1": GGMLQuantizationType.Q5_1,
}
NANO = resolve("art/nano-games")


def nano_model() -> Any:
    """The weights of art/nano-games, a Qwen3."""
    return AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)


def write_gguf(
    path: Path,
    causal_lm: Any,
    *,
    type: str = "Q4_1",
    architecture: str | None = None,
    rule: str = "qwen2",
    tokenizer: bool = True,
    values: dict[str, Any] | None = None,
    leave_out: tuple[str, ...] = (),
) -> Path:
    """Writes the model with the vocabulary of art/nano-games. type: of matrices. rule: `tokenizer.ggml.pre`.
    values: more metadata. leave_out: tensors.
    """
    config = causal_lm.config
    arch = architecture or config.model_type
    writer = GGUFWriter(path, arch)
    writer.add_name("A small model")
    writer.add_license("mit")
    for key, name in FIGURES.items():
        writer.add_uint32(f"{arch}.{key}", getattr(config, name))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if tokenizer:
        _add_tokenizer(writer, rule)
    for key, value in (values or {}).items():
        kind = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[value.__class__]
        kind(key, value)
    kept = {} if config.tie_word_embeddings else {"lm_head.weight"}
    for name, tensor in causal_lm.state_dict().items():
        if name == "lm_head.weight" and name not in kept:
            continue
        short = gguf_name(name)
        if short in leave_out:
            continue
        numbers = _as_llama_cpp(config, arch, short, tensor).float().numpy()
        kind = TYPES[type] if numbers.ndim > 1 else GGMLQuantizationType.F32
        if kind is GGMLQuantizationType.F32:
            writer.add_tensor(short, numbers.astype(np.float32))
        else:
            writer.add_tensor(short, quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """The name of a parameter in llama.cpp."""
    name = name.replace("model.layers.", "blk.")
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def _as_llama_cpp(config: Any, arch: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """As its converter turns the heads of Llama's queries and keys."""
    if arch != "llama" or not name.endswith(("attn_q.weight", "attn_k.weight")):
        return tensor
    heads = config.num_attention_heads if "attn_q" in name else config.num_key_value_heads
    return tensor.reshape(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)


def _add_tokenizer(writer: GGUFWriter, rule: str) -> None:
    content = json.loads((NANO / "tokenizer.json").read_bytes())
    vocabulary = dict(content["model"]["vocab"])
    vocabulary.update({one["content"]: one["id"] for one in content["added_tokens"]})
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    added = {one["content"]: 3 if one["special"] else 4 for one in content["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types([added.get(token, 1) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

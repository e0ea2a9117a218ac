"""Tiny random models of many families, and a way to compute all of a model in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import PreTrainedConfig

VOCABULARY = 23
SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=24,
    max_position_embeddings=512,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
HEAD = dict(**SHAPE, head_dim=8)
WINDOW = 6
"""Shorter than most paths of the tests' trees."""
TWO_WINDOWS = dict(
    sliding_window=WINDOW,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
)
MANY = {**SHAPE, "num_key_value_heads": 4}
THREE = {**HEAD, "num_hidden_layers": 3}
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12)
LATENT = dict(
    q_lora_rank=6,
    kv_lora_rank=6,
    qk_nope_head_dim=6,
    qk_rope_head_dim=4,
    v_head_dim=7,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=12,
    n_shared_experts=1,
    first_k_dense_replace=1,
    n_group=1,
    topk_group=1,
)
LINEAR = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=6,
    linear_value_head_dim=5,
    linear_conv_kernel_dim=3,
    layer_types=["linear_attention", "full_attention"],
)

FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen2": lambda: hf.Qwen2Config(**SHAPE),
    "qwen2-windows": lambda: hf.Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: hf.Qwen3Config(**HEAD),
    "qwen3-moe": lambda: hf.Qwen3MoeConfig(**HEAD, **EXPERTS, norm_topk_prob=True),
    "llama": lambda: hf.LlamaConfig(**SHAPE),
    "mistral": lambda: hf.MistralConfig(**SHAPE, sliding_window=WINDOW),
    "mixtral": lambda: hf.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
    "gemma2": lambda: hf.Gemma2Config(
        **THREE,
        **TWO_WINDOWS,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        query_pre_attn_scalar=8,
    ),
    "gemma3": lambda: hf.Gemma3TextConfig(**THREE, **TWO_WINDOWS, query_pre_attn_scalar=8),
    "gemma3-images": lambda: hf.Gemma3Config(
        text_config=dict(**THREE, **TWO_WINDOWS, query_pre_attn_scalar=8),
        vision_config=dict(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=28,
            patch_size=14,
        ),
        mm_tokens_per_image=4,
        image_token_index=20,
        boi_token_index=21,
        eoi_token_index=22,
    ),
    "gemma4": lambda: hf.Gemma4TextConfig(
        **THREE,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=6,
        global_head_dim=12,
    ),
    "exaone4": lambda: hf.Exaone4Config(**{**SHAPE, "num_hidden_layers": 3}, **TWO_WINDOWS),
    "phi": lambda: hf.PhiConfig(**SHAPE, partial_rotary_factor=0.5),
    "phi3": lambda: hf.Phi3Config(**SHAPE, sliding_window=WINDOW),
    "olmo": lambda: hf.OlmoConfig(**SHAPE, clip_qkv=4.0),
    "olmo2": lambda: hf.Olmo2Config(**SHAPE),
    "olmo3": lambda: hf.Olmo3Config(**{**SHAPE, "num_hidden_layers": 3}, **TWO_WINDOWS),
    "olmoe": lambda: hf.OlmoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2),
    "smollm3": lambda: hf.SmolLM3Config(**SHAPE, no_rope_layer_interval=2),
    "gpt-oss": lambda: hf.GptOssConfig(
        **THREE,
        **TWO_WINDOWS,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
    "deepseek-v2": lambda: hf.DeepseekV2Config(**MANY, **LATENT, topk_method="greedy"),
    "deepseek-v3": lambda: hf.DeepseekV3Config(**MANY, **LATENT),
    "granite": lambda: hf.GraniteConfig(
        **SHAPE, attention_multiplier=0.3, embedding_multiplier=2.0, logits_scaling=3.0
    ),
    "cohere2": lambda: hf.Cohere2Config(**THREE, **TWO_WINDOWS, logit_scale=0.5),
    "glm4": lambda: hf.Glm4Config(**HEAD),
    "stablelm": lambda: hf.StableLmConfig(**SHAPE),
    "gpt-neox": lambda: hf.GPTNeoXConfig(**SHAPE),
    "gpt2": lambda: hf.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=512),
    "qwen3-next": lambda: hf.Qwen3NextConfig(**HEAD, **LINEAR, **EXPERTS, shared_expert_intermediate_size=12),
    "jamba": lambda: hf.JambaConfig(
        **SHAPE, num_experts=2, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4, mamba_dt_rank=4
    ),
    "falcon-h1": lambda: hf.FalconH1Config(
        **HEAD,
        mamba_d_ssm=16,
        mamba_n_heads=4,
        mamba_d_head=4,
        mamba_d_state=8,
        mamba_n_groups=1,
        mamba_chunk_size=8,
        lm_head_multiplier=0.4,
    ),
    "lfm2": lambda: hf.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
    "llama4": lambda: hf.Llama4TextConfig(
        **HEAD, attention_chunk_size=WINDOW, num_local_experts=2, intermediate_size_mlp=24
    ),
    "bloom": lambda: hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=4),
}


def build(config: PreTrainedConfig, attention: str, dtype: torch.dtype, seed: int = 0) -> Any:
    """Random weights, large enough that every layer matters."""
    torch.manual_seed(seed)
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(dtype)
    if dtype == torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@contextmanager
def all_in_float64() -> Iterator[None]:
    """Where a model's own code asks for float32 (norms, routers, softmax), it gets float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield

"""The weights of a GGUF file in a model of transformers: dequantized, all of them and no others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from art.engine.builtin.free_memory import GIB, free_memory
from art.errors import ConfigurationError
from art.process.imports import import_lock
from art_extensions.gguf.header import PLAIN, GgufHeader, GgufTensor

SAFETENSORS = "Take the model's folder in safetensors as base_model"
PARAMETERS: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
"""What llama.cpp calls a tensor of the families of `PLAIN` -> its parameter in transformers."""


def check_memory(header: GgufHeader, source: str) -> None:
    """Raises ConfigurationError where the conversion needs more memory than is free."""
    free = free_memory(torch.device("cpu"))
    if header.memory_needed > free:
        raise ConfigurationError(
            f"converting {source} needs {header.memory_needed / GIB:.1f} GiB of main memory "
            f"({header.parameters / 1e9:.2f} billion weights), and {free / GIB:.1f} GiB are free: end other "
            "programs, convert it on a larger machine, or take a smaller model"
        )


def read_model(header: GgufHeader, config: Any) -> Any:
    """Returns a model that can be saved, in the dtype of `stored_dtype`, or in float32 where float16 ends.

    Raises ConfigurationError where the file's weights are not those of its architecture.
    """
    read = _plain_weights if header.architecture in PLAIN else _weights_by_transformers
    for dtype in (header.stored_dtype, torch.float32):
        state = read(header, config, dtype)
        if all(bool(torch.isfinite(one).all()) for one in state.values()):
            return _filled(header, config, state, dtype)
    raise ConfigurationError(f"{header.path} has weights that are no finite numbers")


def _filled(header: GgufHeader, config: Any, state: dict[str, torch.Tensor], dtype: torch.dtype) -> Any:
    with import_lock:
        from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        causal_lm = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    try:
        wrong = causal_lm.load_state_dict(state, assign=True, strict=False)
    except RuntimeError as error:  # of another shape
        raise ConfigurationError(
            f"{header.path}: {' '.join(str(error).split())[:400]}. {SAFETENSORS}"
        ) from error
    causal_lm.tie_weights()
    # Those that share another's weights, and what is computed from the configuration.
    missing = [name for name, one in causal_lm.named_parameters() if one.is_meta]
    if missing or wrong.unexpected_keys or causal_lm.num_parameters() != header.parameters:
        flaws = [*missing[:3], *wrong.unexpected_keys[:3]]
        raise ConfigurationError(
            f"{header.path} has {header.parameters:,} weights, and a {type(causal_lm).__name__} of its "
            f"configuration has {causal_lm.num_parameters():,} ({', '.join(flaws) or 'in all'}). "
            f"{SAFETENSORS}"
        )
    return causal_lm


def _plain_weights(header: GgufHeader, config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {
        _parameter_name(one.name): _tensor(header, config, one).to(dtype)
        for one in header.tensors
        if not one.name.startswith("rope_")
    }


def _parameter_name(name: str) -> str:
    """Returns what transformers calls a tensor.

    >>> _parameter_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    *layer, part, kind = name.split(".")
    known = PARAMETERS.get(part, part)
    return f"model.layers.{layer[-1]}.{known}.{kind}" if layer else f"{known}.{kind}"


def _tensor(header: GgufHeader, config: Any, tensor: GgufTensor) -> torch.Tensor:
    numbers = torch.from_numpy(tensor.rows()).reshape(tensor.shape)
    part = tensor.name.split(".")[-2]
    if header.architecture != "llama" or part not in {"attn_q", "attn_k"}:
        return numbers
    # llama.cpp turns neighbouring numbers of a head, transformers its two halves.
    heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
    turned = numbers.reshape(heads, -1, 2, *tensor.shape[1:])
    return turned.transpose(1, 2).reshape(tensor.shape)


def _weights_by_transformers(header: GgufHeader, config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    with import_lock:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging as transformers_logging

    # Its warnings are refusals here.
    transformers_logging.set_verbosity_error()
    try:
        loaded, info = AutoModelForCausalLM.from_pretrained(
            str(header.path.parent),
            gguf_file=header.path.name,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            **_dequantizing(),
        )
    except (ValueError, KeyError, NotImplementedError, IndexError, TypeError, RuntimeError) as error:
        raise ConfigurationError(
            f"{header.path}: transformers cannot read its weights ({' '.join(str(error).split())[:400]})"
        ) from error
    # It fills these with random numbers. One that is marked as quantized is not saved: only its state is.
    lacking = set(info["missing_keys"]) - set(loaded.all_tied_weights_keys or {})
    return {name: one for name, one in loaded.state_dict().items() if name not in lacking}


def _dequantizing() -> dict[str, Any]:
    """Returns what newer releases of transformers want to hear; older ones always dequantize."""
    try:
        with import_lock:
            from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}

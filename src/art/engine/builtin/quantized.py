"""Base models in 4 and 8 bits, by bitsandbytes: the same arithmetic in engine and trainer.

4 bits: NF4 in blocks of 64 whose scales are quantized again (Dettmers et al., "QLoRA", arXiv:2305.14314); a
layer unpacks its weight and computes in the model's precision. 8 bits: weights and activations are rounded
row by row (Dettmers et al., "LLM.int8()", arXiv:2208.07339).

Two of the library's shortcuts are off, because with them the logprob of a token would depend on what else is
in the pass. On CPUs with AVX512-BF16 it computes a pass without gradient in bfloat16, which differs by 0.1
nats from one with a gradient. In 8 bits it computes columns in 16 bits whose largest number in the pass is
above a threshold.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from art.errors import require_extra
from art.process.imports import import_lock
from art.wire.records import Bits

_PACKED = (torch.uint8, torch.int8)


def quantizing(bits: Bits, device: torch.device | str, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a base model in these bits; none for 16.

    Raises MissingExtraError where bitsandbytes is not installed.
    """
    if bits == 16:
        return {}
    require_extra("quantized", f"a base model in {bits} bits")
    # It warns of each product in 8 bits, and of a kernel for the shortcut that is not taken.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with import_lock:
        from transformers import BitsAndBytesConfig

    if bits == 8:
        config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    where = torch.device(device)
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    return {"quantization_config": config, "device_map": {"": where}}


def place(module: Any, device: torch.device | str) -> Any:
    """The loaded model on its device, where its layers compute a token the same in every pass."""
    layers = [layer for layer in module.modules() if is_quantized(layer)]
    for layer in layers:
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    return module if layers else module.to(device)  # quantized where it computes


def is_quantized(layer: nn.Module) -> bool:
    """Returns whether a layer's weight is packed. Nothing may be computed with it but by the layer."""
    return isinstance(layer, nn.Linear) and layer.weight.dtype in _PACKED


def unpacked_weight(layer: Any) -> Tensor:
    """The weight of a linear layer in float32, [out, in], quantized or not. The layer stays as it is."""
    weight = layer.weight
    if not is_quantized(layer):
        return weight.float()
    # PEFT's helper loses the scales of a layer in 8 bits on a CPU.
    with import_lock:
        from bitsandbytes import functional

    if weight.dtype == torch.uint8:
        return functional.dequantize_4bit(weight.data, weight.quant_state).float()
    scales = layer.state.SCB if weight.SCB is None else weight.SCB
    return functional.int8_vectorwise_dequant(weight.data, scales).float()

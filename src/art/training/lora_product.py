"""A frozen linear layer and its LoRA as one operation, behind PEFT's own modules.

PEFT writes `base(x) + B(A(x)) * scaling`: the scaled product and the sum are arrays of the layer's output of
their own, read and written again in the backward pass. Here the low-rank product is added to what the base
layer has written, and its gradient to that of the base layer. What the backward pass keeps is the same.

Beside 16-bit weights PEFT keeps a LoRA in float32 and computes it so, on float32 copies of all activations.
Here its products are 16-bit ones, as the samplers' are; the weights and what the optimizer does with them
stay float32.

Letters: T = tokens, I = input width, O = output width, R = rank.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor
from torch.autograd.function import once_differentiable


class _LoraProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        down_RI: Tensor,
        up_OR: Tensor,
        scaling: float,
    ) -> Tensor:
        out_TO = torch.nn.functional.linear(x_TI, weight_OI, bias_O)
        low_TR = x_TI @ down_RI.to(x_TI.dtype).T
        out_TO.addmm_(low_TR, up_OR.to(x_TI.dtype).T, alpha=scaling)
        ctx.scaling = scaling
        ctx.save_for_backward(x_TI, low_TR, weight_OI, down_RI, up_OR)
        return out_TO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, low_TR, weight_OI, down_RI, up_OR = ctx.saved_tensors
        adapter_dtype = down_RI.dtype
        down_RI, up_OR = down_RI.to(x_TI.dtype), up_OR.to(x_TI.dtype)
        low_grad_TR = (grad_TO @ up_OR).mul_(ctx.scaling)
        x_grad_TI = None
        if ctx.needs_input_grad[0]:
            x_grad_TI = (grad_TO @ weight_OI).addmm_(low_grad_TR, down_RI)
        down_grad_RI = up_grad_OR = None
        if ctx.needs_input_grad[3]:
            down_grad_RI = (low_grad_TR.T @ x_TI).to(adapter_dtype)
        if ctx.needs_input_grad[4]:
            up_grad_OR = (grad_TO.T @ low_TR).to(adapter_dtype).mul_(ctx.scaling)
        return x_grad_TI, None, None, down_grad_RI, up_grad_OR, None


def join_products(causal_lm: torch.nn.Module) -> None:
    """Lets each LoRA on a frozen linear layer of the model compute as one operation where it can.

    Layers of other classes, several adapters at once, dropout and variants stay PEFT's own.
    """
    for module in causal_lm.modules():
        if type(module) is LoraLinear and type(module.base_layer) is torch.nn.Linear:
            module.forward = MethodType(_forward, module)


def _forward(module: LoraLinear, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    name = None if args or kwargs else _only_adapter(module)
    if name is None:
        return LoraLinear.forward(module, x, *args, **kwargs)
    base, down, up = module.base_layer, module.lora_A[name], module.lora_B[name]
    dtype = down.weight.dtype
    alike = x.dtype == base.weight.dtype and dtype == up.weight.dtype and dtype in (x.dtype, torch.float32)
    if not alike or base.weight.requires_grad or down.bias is not None or up.bias is not None:
        return LoraLinear.forward(module, x)
    flat_TI = x.reshape(-1, x.shape[-1])
    scaling = float(module.scaling[name])
    out_TO = _LoraProduct.apply(flat_TI, base.weight, base.bias, down.weight, up.weight, scaling)
    return out_TO.view(*x.shape[:-1], -1)


def _only_adapter(module: LoraLinear) -> str | None:
    """Returns the one adapter that computes, without dropout; None where it is another case."""
    if module.disable_adapters or module.merged:
        return None
    names = [name for name in module.active_adapters if name in module.lora_A]
    if len(names) != 1 or names[0] in module.lora_variant:
        return None
    dropout = module.lora_dropout[names[0]]
    idle = isinstance(dropout, torch.nn.Identity) or not dropout.training
    return names[0] if idle else None

"""A frozen linear layer and its LoRA, or the LoRAs of several adapters, as one operation, behind PEFT's own
modules.

PEFT writes `base(x) + B(A(x)) * scaling`: the scaled product and the sum are arrays of the layer's output of
their own, read and written again in the backward pass. Here the low-rank product is added to what the base
layer has written, and its gradient to that of the base layer. What the backward pass keeps is the same.

Beside 16-bit weights PEFT keeps a LoRA in float32 and computes it so, on float32 copies of all activations.
Here its products are 16-bit ones, as the samplers' are; the weights and what the optimizer does with them
stay float32.

Where a forward pass holds the tokens of several adapters, each computes its own segment of them (segmented
LoRA products: Chen et al., "Punica: Multi-Tenant LoRA Serving", 2023), beside one product of the base layer.

Letters: T = tokens, I = input width, O = output width, R = rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor
from torch.autograd.function import once_differentiable

from art.extensions import LORA, load_extension


class NotSharedError(Exception):
    """A batch cannot be computed in one pass with those of other adapters. Nothing was changed."""


class Segment(NamedTuple):
    """The tokens of one adapter in a forward pass: those from `start` on, before `stop`."""

    adapter: str
    start: int
    stop: int


@dataclass(slots=True)
class Segments:
    """The segments of the forward pass under way. None of them: PEFT's active adapter computes all tokens."""

    of_pass: tuple[Segment, ...] = ()


class _LoraProduct(torch.autograd.Function):
    """A layer and the LoRA of each segment; of each of these: its tokens and scaling, and its down and up."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        spans: Sequence[tuple[slice, float]],
        *downs_ups: Tensor,
    ) -> Tensor:
        out_TO = torch.nn.functional.linear(x_TI, weight_OI, bias_O)
        lows = []
        for (tokens, scaling), (down_RI, up_OR) in zip(spans, _pairs(downs_ups), strict=True):
            lows.append(x_TI[tokens] @ down_RI.to(x_TI.dtype).T)
            out_TO[tokens].addmm_(lows[-1], up_OR.to(x_TI.dtype).T, alpha=scaling)
        ctx.spans = spans
        ctx.save_for_backward(x_TI, weight_OI, *lows, *downs_ups)
        return out_TO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, weight_OI, *saved = ctx.saved_tensors
        lows, downs_ups = saved[: len(ctx.spans)], saved[len(ctx.spans) :]
        needed = zip(ctx.needs_input_grad[4::2], ctx.needs_input_grad[5::2], strict=True)
        x_grad_TI = grad_TO @ weight_OI if ctx.needs_input_grad[0] else None
        grads: list[Tensor | None] = []
        for (tokens, scaling), low_TR, (down_RI, up_OR), (needs_down, needs_up) in zip(
            ctx.spans, lows, _pairs(downs_ups), needed, strict=True
        ):
            own_x_TI, own_grad_TO = x_TI[tokens], grad_TO[tokens]
            low_grad_TR = (own_grad_TO @ up_OR.to(x_TI.dtype)).mul_(scaling)
            if x_grad_TI is not None:
                x_grad_TI[tokens].addmm_(low_grad_TR, down_RI.to(x_TI.dtype))
            grads.append((low_grad_TR.T @ own_x_TI).to(down_RI.dtype) if needs_down else None)
            grads.append((own_grad_TO.T @ low_TR).to(up_OR.dtype).mul_(scaling) if needs_up else None)
        return x_grad_TI, None, None, None, *grads


def _pairs(downs_ups: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(downs_ups[::2], downs_ups[1::2], strict=True)


def join_products(causal_lm: torch.nn.Module, segments: Segments) -> None:
    """Lets each LoRA on a frozen linear layer of the model compute as one operation where it can.

    Layers of other classes, dropout and variants stay PEFT's own.
    """
    for module in causal_lm.modules():
        if type(module) is LoraLinear and type(module.base_layer) is torch.nn.Linear:
            module.forward = partial(_forward, module, segments)
        elif isinstance(module, ParamWrapper):
            load_extension(LORA, "experts").join_experts(module)


def _forward(module: LoraLinear, segments: Segments, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    base, computing = module.base_layer, segments.of_pass
    flat_TI = x.reshape(-1, x.shape[-1])
    if not computing:
        name = None if args or kwargs else _only_adapter(module)
        if name is None or x.dtype != base.weight.dtype or not is_plain(module, name):
            return LoraLinear.forward(module, x, *args, **kwargs)
        computing = (Segment(name, 0, len(flat_TI)),)
    elif len(flat_TI) != computing[-1].stop:
        raise NotSharedError("a layer reads some of the pass's tokens only")  # one of several experts
    own = [one for one in computing if one.adapter in module.lora_A]
    spans = [(slice(one.start, one.stop), float(module.scaling[one.adapter])) for one in own]
    weights = [part[one.adapter].weight for one in own for part in (module.lora_A, module.lora_B)]
    out_TO = _LoraProduct.apply(flat_TI, base.weight, base.bias, spans, *weights)
    return out_TO.view(*x.shape[:-1], -1)


def is_plain(module: LoraLinear, name: str) -> bool:
    """Returns whether an adapter of a layer is nothing but two products on a frozen base, without dropout."""
    if name in module.lora_variant or not _is_idle(module.lora_dropout[name]):
        return False
    base, down, up = module.base_layer.weight, module.lora_A[name], module.lora_B[name]
    dtype = down.weight.dtype
    alike = dtype == up.weight.dtype and dtype in (base.dtype, torch.float32)
    return alike and not base.requires_grad and down.bias is None and up.bias is None


def _is_idle(dropout: torch.nn.Module) -> bool:
    return isinstance(dropout, torch.nn.Identity) or not dropout.training


def _only_adapter(module: LoraLinear) -> str | None:
    """Returns the one adapter that computes; None where it is another case."""
    if module.disable_adapters or module.merged:
        return None
    names = [name for name in module.active_adapters if name in module.lora_A]
    return names[0] if len(names) == 1 else None

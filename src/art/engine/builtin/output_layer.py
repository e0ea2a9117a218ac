"""The output layer of a model in 16 bits, computed in float32: sampler and trainer agree on a logprob only as
well as each of them computes it, and logits that are rounded to bfloat16 are off by some hundredths.

Weights and hidden states are those of the model; what changes is that their product is not rounded to 16 bits
(MiniMax-M1, arXiv:2506.13585; ScaleRL, arXiv:2510.13786).

Letters: N = rows, D = hidden size, V = vocabulary, C = ids of a chunk, K, M = any.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK_WEIGHTS = 1 << 22
"""Weights that are held in float32 at once: 16 MiB."""
COARSE = (torch.bfloat16, torch.float16)


class WideLinear(nn.Linear):
    """A linear layer whose weights are in 16 bits and whose output is in float32."""

    def forward(self, hidden: Tensor) -> Tensor:
        hidden_ND, pieces = hidden.reshape(-1, self.in_features), self._pieces()
        if torch.is_grad_enabled() and (hidden.requires_grad or self.weight.requires_grad):
            logits_NV = _Product.apply(hidden_ND, self.weight, pieces)
        else:
            logits_NV = product(hidden_ND, self.weight, pieces)
        if self.bias is not None:
            logits_NV = logits_NV + self.bias.float()
        return logits_NV.view(*hidden.shape[:-1], self.out_features)

    def _pieces(self) -> list[slice]:
        """All ids at once where nothing has to be written out in float32. From the layer's own numbers: a
        shape would be a decision to whoever records the pass.
        """
        if _multiplies_wide(self.weight.device.type):
            return [slice(0, self.out_features)]
        return pieces_of(self.out_features, self.in_features)


def widen(model: Any) -> None:
    """Let the output layer of `model` compute in float32, in place: its weights stay the same tensors, tied
    or not. A layer of another class than torch's own, or one that is exact already, is left as it is.
    """
    layer = model.get_output_embeddings()
    if type(layer) is nn.Linear and layer.weight.dtype in COARSE:
        layer.__class__ = WideLinear


def pieces_of(vocabulary: int, size: int, *, chunk: int = CHUNK_WEIGHTS) -> list[slice]:
    """The vocabulary in pieces of at most `chunk` weights, at least one id each.

    >>> pieces_of(5, 2, chunk=4)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, chunk // size)
    return [slice(first, min(first + step, vocabulary)) for first in range(0, vocabulary, step)]


def product(hidden_ND: Tensor, weight_VD: Tensor, pieces: Sequence[slice]) -> Tensor:
    """Hidden states x weights in float32, [N, V]. Beside the result, the weights of one piece exist in it
    at once.
    """
    parts = [_multiplied(hidden_ND, weight_VD[ids].t()) for ids in pieces]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, pieces: Sequence[slice]) -> Tensor:
        ctx.save_for_backward(hidden_ND, weight_VD)
        ctx.pieces = pieces
        return product(hidden_ND, weight_VD, pieces)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope_NV: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        hidden_ND, weight_VD = ctx.saved_tensors
        wanted_hidden, wanted_weight, _ = ctx.needs_input_grad
        grad_ND = torch.zeros(hidden_ND.shape, dtype=torch.float32, device=hidden_ND.device)
        grad_VD = torch.empty_like(weight_VD) if wanted_weight else None
        for ids in ctx.pieces:
            if wanted_hidden:
                grad_ND += _multiplied(slope_NV[:, ids], weight_VD[ids])
            if grad_VD is not None:
                grad_VD[ids] = _multiplied(slope_NV[:, ids].t(), hidden_ND).to(weight_VD.dtype)
        return grad_ND.to(hidden_ND.dtype) if wanted_hidden else None, grad_VD, None


def _multiplied(a_NK: Tensor, b_KM: Tensor) -> Tensor:
    """a x b in float32; b is in 16 bits, a in 16 or in 32."""
    if not _multiplies_wide(b_KM.device.type):
        wide_NK = a_NK.float()
        return wide_NK @ b_KM.type_as(wide_NK)
    if a_NK.dtype == b_KM.dtype:
        return torch.mm(a_NK, b_KM, out_dtype=torch.float32)
    # What the first 16 bits leave of each number is in the second ones.
    high_NK = a_NK.to(b_KM.dtype)
    low_NK = (a_NK - high_NK).to(b_KM.dtype)
    both = (torch.mm(one, b_KM, out_dtype=torch.float32) for one in (high_NK, low_NK))
    return next(both) + next(both)


@functools.cache
def _multiplies_wide(device: str) -> bool:
    """Returns whether a kind of device multiplies 16 bits into 32 by itself, with nothing written out in
    between.
    """
    one = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    try:
        return torch.mm(one, one, out_dtype=torch.float32).dtype == torch.float32
    except (NotImplementedError, RuntimeError, TypeError):
        return False

"""Attention sinks (GPT-OSS) on the rectangles: one more score per head that takes its share of the softmax
and has no value.

With the logsumexp `l` of a row and its head's sink `s`, the row's output is scaled by
`exp(l - logaddexp(l, s))`. The rectangles' backward is exact when it is given that output and that sum; the
sink's gradient is what the softmax's says for a key whose value is zero: `-p(sink) * (grad . out)`.
"""

from __future__ import annotations

from typing import Any

import torch

from art.training.attention.pieces import TreePlan
from art.training.attention.rectangles import merge_backward, merge_forward


def attend_with_sinks(
    query_BHTD: torch.Tensor,
    key_BKTD: torch.Tensor,
    value_BKTD: torch.Tensor,
    scale: float,
    plan: TreePlan,
    sinks_H: torch.Tensor,
) -> torch.Tensor:
    """Attention of every token to its ancestors, itself and its head's sink, [B, H, T, D]."""
    out: torch.Tensor = _Sinks.apply(query_BHTD, key_BKTD, value_BKTD, sinks_H, scale, plan)
    return out


class _Sinks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks_H: torch.Tensor,
        scale: float,
        plan: TreePlan,
    ) -> torch.Tensor:
        out, lse_BHT = merge_forward(q, k, v, scale, plan)
        sink_BHT = sinks_H.to(lse_BHT.dtype)[None, :, None]
        with_sink_BHT = torch.logaddexp(lse_BHT, sink_BHT)
        out = (out * torch.exp(lse_BHT - with_sink_BHT).unsqueeze(-1)).to(q.dtype)
        ctx.save_for_backward(q, k, v, sinks_H, out, with_sink_BHT)
        ctx.scale, ctx.plan = scale, plan
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, sinks_H, out, lse_BHT = ctx.saved_tensors
        pieces = merge_backward(grad, q, k, v, out, lse_BHT, ctx.scale, ctx.plan)
        d_sinks = None
        if ctx.needs_input_grad[3]:
            share_BHT = torch.exp(sinks_H.to(lse_BHT.dtype)[None, :, None] - lse_BHT)
            d_sinks = -(share_BHT * (grad * out).sum(-1)).sum((0, 2)).to(sinks_H.dtype)
        return *pieces, d_sinks, None, None

"""Tree attention from torch's flash attention for CPUs, piece by piece, with gradients; with attention sinks
where a model has them.

The forward op returns the logsumexp, which merges the pieces of a row exactly; the backward op is exact per
piece when it is given the row's merged output and logsumexp. Both are private operations of torch:
`checks.py` checks them before they are used. float32 and float64; bfloat16 is computed in float32, which is
more exact and no slower. Grouped-query heads natively.

A sink (GPT-OSS) is one more score per head that takes its share of the softmax and has no value. With the
logsumexp `l` of a row and its head's sink `s`, the row's output is scaled by `exp(l - logaddexp(l, s))`. The
backward is exact when it is given that output and that sum; the sink's gradient is what the softmax's says
for a key whose value is zero: `-p(sink) * (grad . out)`.

Letters: B = 1, H = query heads, K = key heads, T = tokens, D = head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from art.training.attention.pieces import TreePlan

TOKENS = 2
"""The dimension of tokens."""


def attend_rectangles(
    query_BHTD: torch.Tensor, key_BKTD: torch.Tensor, value_BKTD: torch.Tensor, scale: float, plan: TreePlan
) -> torch.Tensor:
    """Attention of every token to its ancestors and itself, [B, H, T, D]."""
    out: torch.Tensor = _Rectangles.apply(query_BHTD, key_BKTD, value_BKTD, scale, plan)
    return out


class _Rectangles(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, plan: TreePlan
    ) -> torch.Tensor:
        out, lse = merge_forward(q, k, v, scale, plan)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.plan = scale, plan
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        return *merge_backward(grad, q, k, v, out, lse, ctx.scale, ctx.plan), None, None


def merge_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, plan: TreePlan
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, H, T, D] and logsumexp [B, H, T] of all pieces, in at least float32."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    # In at least float32: CPUs are no faster at attention in bfloat16, and twice as slow at its gradient.
    exact = torch.promote_types(q.dtype, torch.float32)
    q, k, v = q.to(exact), k.to(exact), v.to(exact)
    pieces = []
    sides = (_split(plan, q)[0], _square_keys(plan, k), _square_keys(plan, v))
    for square, q_rows, keys, values in zip(plan.squares, *sides, strict=True):
        causal = square.mask is None
        pieces.append(flash(q_rows, keys, values, 0.0, causal, attn_mask=square.mask, scale=scale))
    out = torch.cat([piece for piece, _ in pieces], dim=TOKENS)
    lse = torch.cat([piece_lse for _, piece_lse in pieces], dim=TOKENS)
    for rect in plan.rectangles:
        rows = (TOKENS, rect.start, rect.rows)
        span = (TOKENS, rect.key_start, rect.keys)
        piece, piece_lse = flash(q.narrow(*rows), k.narrow(*span), v.narrow(*span), 0.0, False, scale=scale)
        row_lse = lse.narrow(*rows)
        weight = torch.sigmoid(piece_lse - row_lse).unsqueeze(-1)
        out.narrow(*rows).lerp_(piece, weight)
        row_lse.copy_(torch.logaddexp(row_lse, piece_lse))
    return out, lse


def merge_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    plan: TreePlan,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of queries, keys and values. `out` and `lse` are those of the whole rows."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    exact = torch.promote_types(q.dtype, torch.float32)
    dtypes = q.dtype, k.dtype, v.dtype
    grad, q, k, v, out = (tensor.to(exact) for tensor in (grad, q, k, v, out))
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    rows_q: list[torch.Tensor] = []
    pooled: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    sides = (*_split(plan, grad, q, out, lse), _square_keys(plan, k), _square_keys(plan, v))
    for square, g_rows, q_rows, out_rows, lse_rows, keys, values in zip(plan.squares, *sides, strict=True):
        mask, causal = square.mask, square.mask is None
        piece_q, *piece_kv = flash(
            g_rows, q_rows, keys, values, out_rows, lse_rows, 0.0, causal, attn_mask=mask, scale=scale
        )
        rows_q.append(piece_q)
        near = square.reach + square.rows
        for total, piece, pool in zip((dk, dv), piece_kv, pooled, strict=True):
            above, beside = piece.split([square.gathered, near], dim=TOKENS)
            total.narrow(TOKENS, square.start - square.reach, near).add_(beside)
            if plan.pool is not None and square.pooled:
                pool.append(above)
            elif square.ancestors is not None and square.gathered:
                total.index_add_(TOKENS, square.ancestors, above)
    dq = torch.cat(rows_q, dim=TOKENS)
    if plan.pool is not None:
        for total, pool in zip((dk, dv), pooled, strict=True):
            total.index_add_(TOKENS, plan.pool.above, torch.cat(pool, dim=TOKENS))
    for rect in plan.rectangles:
        rows, span = (TOKENS, rect.start, rect.rows), (TOKENS, rect.key_start, rect.keys)
        g_rows, q_rows, out_rows, lse_rows = (one.narrow(*rows) for one in (grad, q, out, lse))
        piece_q, *piece_kv = flash(
            g_rows, q_rows, k.narrow(*span), v.narrow(*span), out_rows, lse_rows, 0.0, False, scale=scale
        )
        dq.narrow(*rows).add_(piece_q)
        for total, piece in zip((dk, dv), piece_kv, strict=True):
            total.narrow(*span).add_(piece)
    return dq.to(dtypes[0]), dk.to(dtypes[1]), dv.to(dtypes[2])


def _split(plan: TreePlan, *tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """Each tensor's rows by square; the squares partition the tokens in order."""
    sizes = [square.rows for square in plan.squares]
    return [tensor.split(sizes, dim=TOKENS) for tensor in tensors]


def _square_keys(plan: TreePlan, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The keys (or values) of each square: gathered ones, then those right before its rows, then its rows."""
    pool = plan.pool
    parts: Iterator[torch.Tensor] = iter(())
    if pool is not None:
        parts = iter(tensor.index_select(TOKENS, pool.index).split(pool.sizes, dim=TOKENS))
    for square in plan.squares:
        if pool is not None and square.pooled:
            yield next(parts)
            continue
        near = tensor.narrow(TOKENS, square.start - square.reach, square.reach + square.rows)
        if square.ancestors is None or not square.gathered:
            yield near
        else:
            yield torch.cat([tensor.index_select(TOKENS, square.ancestors), near], dim=TOKENS)


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

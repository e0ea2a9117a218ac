"""Tree attention from torch's flash attention for CPUs, piece by piece, with gradients.

The forward op returns the logsumexp, which merges the pieces of a row exactly; the backward op is exact per
piece when it is given the row's merged output and logsumexp. Both are private operations of torch:
`kernel.py` checks them before they are used. float32, float64, bfloat16; grouped-query heads natively.

Letters: B = 1, H = query heads, K = key heads, T = tokens, D = head size.
"""

from __future__ import annotations

from typing import Any

import torch

from art.training.attention.plan import Rectangle, TreePlan

TOKENS = 2
"""The dimension of tokens."""


def attend(
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
    pieces = []
    for square, q_rows, k_rows, v_rows in zip(plan.squares, *_split(plan, q, k, v), strict=True):
        keys, values = _under(square.ancestors, k, k_rows), _under(square.ancestors, v, v_rows)
        causal = square.mask is None
        pieces.append(flash(q_rows, keys, values, 0.0, causal, attn_mask=square.mask, scale=scale))
    # Sums are kept in at least float32: the logsumexp is, and merging in bfloat16 would lose digits.
    exact = torch.promote_types(q.dtype, torch.float32)
    out = torch.cat([piece for piece, _ in pieces], dim=TOKENS).to(exact)
    lse = torch.cat([piece_lse for _, piece_lse in pieces], dim=TOKENS)
    for rect in plan.rectangles:
        rows = (TOKENS, rect.start, rect.rows)
        piece, piece_lse = flash(q.narrow(*rows), _keys(rect, k), _keys(rect, v), 0.0, False, scale=scale)
        row_lse = lse.narrow(*rows)
        weight = torch.sigmoid(piece_lse - row_lse).unsqueeze(-1)
        out.narrow(*rows).lerp_(piece.to(exact), weight)
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
    dq, dk, dv = (torch.zeros_like(tensor, dtype=exact) for tensor in (q, k, v))
    for square, *parts in zip(plan.squares, *_split(plan, grad, q, out, lse, k, v), strict=True):
        g_rows, q_rows, out_rows, lse_rows, k_rows, v_rows = parts
        keys, values = _under(square.ancestors, k, k_rows), _under(square.ancestors, v, v_rows)
        mask, causal = square.mask, square.mask is None
        piece_q, *piece_kv = flash(
            g_rows, q_rows, keys, values, out_rows, lse_rows, 0.0, causal, attn_mask=mask, scale=scale
        )
        dq.narrow(TOKENS, square.start, square.rows).copy_(piece_q)
        for total, piece in zip((dk, dv), piece_kv, strict=True):
            above = piece.shape[TOKENS] - square.rows
            total.narrow(TOKENS, square.start, square.rows).add_(piece.narrow(TOKENS, above, square.rows))
            if square.ancestors is not None and above:
                total.index_add_(TOKENS, square.ancestors, piece.narrow(TOKENS, 0, above).to(exact))
    for rect in plan.rectangles:
        rows = (TOKENS, rect.start, rect.rows)
        g_rows, q_rows, out_rows, lse_rows = (one.narrow(*rows) for one in (grad, q, out, lse))
        keys, values = _keys(rect, k), _keys(rect, v)
        piece_q, *piece_kv = flash(g_rows, q_rows, keys, values, out_rows, lse_rows, 0.0, False, scale=scale)
        dq.narrow(*rows).add_(piece_q)
        for total, piece in zip((dk, dv), piece_kv, strict=True):
            if rect.ancestors is None:
                total.narrow(TOKENS, rect.key_start, rect.keys).add_(piece)
            else:
                total.index_add_(TOKENS, rect.ancestors, piece.to(exact))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _split(plan: TreePlan, *tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """Each tensor's rows by square; the squares partition the tokens in order."""
    sizes = [square.rows for square in plan.squares]
    return [tensor.split(sizes, dim=TOKENS) for tensor in tensors]


def _under(ancestors: torch.Tensor | None, tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The rows behind their ancestors."""
    if ancestors is None or not len(ancestors):
        return rows
    return torch.cat([tensor.index_select(TOKENS, ancestors), rows], dim=TOKENS)


def _keys(rect: Rectangle, tensor: torch.Tensor) -> torch.Tensor:
    if rect.ancestors is None:
        return tensor.narrow(TOKENS, rect.key_start, rect.keys)
    return tensor.index_select(TOKENS, rect.ancestors)

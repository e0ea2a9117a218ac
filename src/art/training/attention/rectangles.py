"""Tree attention from torch's flash attention for CPUs, piece by piece, with gradients.

The forward op returns the logsumexp, which merges the pieces of a row exactly; the backward op is exact per
piece when it is given the row's merged output and logsumexp. Both are private operations of torch:
`kernel.py` checks them before they are used. float32, float64, bfloat16; grouped-query heads natively.

Letters: B = 1, H = query heads, K = key heads, T = tokens, D = head size.
"""

from __future__ import annotations

from typing import Any

import torch

from art.training.attention.pieces import Square, TreePlan

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
    for square, q_rows in zip(plan.squares, _split(plan, q)[0], strict=True):
        keys, values = square_keys(square, k), square_keys(square, v)
        causal = square.mask is None
        pieces.append(flash(q_rows, keys, values, 0.0, causal, attn_mask=square.mask, scale=scale))
    # Sums are kept in at least float32: the logsumexp is, and merging in bfloat16 would lose digits.
    exact = torch.promote_types(q.dtype, torch.float32)
    out = torch.cat([piece for piece, _ in pieces], dim=TOKENS).to(exact)
    lse = torch.cat([piece_lse for _, piece_lse in pieces], dim=TOKENS)
    for rect in plan.rectangles:
        rows = (TOKENS, rect.start, rect.rows)
        keys = (TOKENS, rect.key_start, rect.keys)
        piece, piece_lse = flash(q.narrow(*rows), k.narrow(*keys), v.narrow(*keys), 0.0, False, scale=scale)
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
    for square, g_rows, q_rows, out_rows, lse_rows in zip(
        plan.squares, *_split(plan, grad, q, out, lse), strict=True
    ):
        mask, causal = square.mask, square.mask is None
        sides = (g_rows, q_rows, square_keys(square, k), square_keys(square, v), out_rows, lse_rows)
        piece_q, *piece_kv = flash(*sides, 0.0, causal, attn_mask=mask, scale=scale)
        dq.narrow(TOKENS, square.start, square.rows).copy_(piece_q)
        near = square.reach + square.rows
        for total, piece in zip((dk, dv), piece_kv, strict=True):
            total.narrow(TOKENS, square.start - square.reach, near).add_(
                piece.narrow(TOKENS, square.gathered, near)
            )
            if square.ancestors is not None and square.gathered:
                total.index_add_(TOKENS, square.ancestors, piece.narrow(TOKENS, 0, square.gathered).to(exact))
    for rect in plan.rectangles:
        rows, keys = (TOKENS, rect.start, rect.rows), (TOKENS, rect.key_start, rect.keys)
        g_rows, q_rows, out_rows, lse_rows = (one.narrow(*rows) for one in (grad, q, out, lse))
        sides = (g_rows, q_rows, k.narrow(*keys), v.narrow(*keys), out_rows, lse_rows)
        piece_q, *piece_kv = flash(*sides, 0.0, False, scale=scale)
        dq.narrow(*rows).add_(piece_q)
        for total, piece in zip((dk, dv), piece_kv, strict=True):
            total.narrow(*keys).add_(piece)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _split(plan: TreePlan, *tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """Each tensor's rows by square; the squares partition the tokens in order."""
    sizes = [square.rows for square in plan.squares]
    return [tensor.split(sizes, dim=TOKENS) for tensor in tensors]


def square_keys(square: Square, tensor: torch.Tensor) -> torch.Tensor:
    """The keys (or values) of a square: gathered ones, then those right before its rows, then its rows."""
    near = tensor.narrow(TOKENS, square.start - square.reach, square.reach + square.rows)
    if square.ancestors is None or not square.gathered:
        return near
    return torch.cat([tensor.index_select(TOKENS, square.ancestors), near], dim=TOKENS)

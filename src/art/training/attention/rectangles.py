"""Tree attention from torch's flash attention for CPUs, piece by piece, with gradients.

The forward op returns the logsumexp, which merges the pieces of a row exactly; the backward op is exact per
piece when it is given the row's merged output and logsumexp. Both are private operations of torch:
`kernel.py` checks them before they are used. float32, float64, bfloat16; grouped-query heads natively.

Letters: B = 1, H = query heads, K = key heads, T = tokens, D = head size.
"""

from __future__ import annotations

from typing import Any

import torch

from art.training.attention.plan import Square, TreePlan


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
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = _buffers(q)
        for square in plan.squares:
            rows = slice(square.start, square.stop)
            mask = _mask(square, plan, q)
            piece, piece_lse = flash(
                q[:, :, rows], k[:, :, rows], v[:, :, rows], 0.0, square.causal, attn_mask=mask, scale=scale
            )
            out[:, :, rows], lse[:, :, rows] = piece, piece_lse
        for rect in plan.rectangles:
            rows, keys = slice(rect.start, rect.stop), slice(rect.key_start, rect.key_stop)
            piece, piece_lse = flash(q[:, :, rows], k[:, :, keys], v[:, :, keys], 0.0, False, scale=scale)
            weight = torch.sigmoid(piece_lse - lse[:, :, rows]).unsqueeze(-1)
            out[:, :, rows].lerp_(piece.to(out.dtype), weight)
            lse[:, :, rows] = torch.logaddexp(lse[:, :, rows], piece_lse)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.plan = scale, plan
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        q, k, v, out, lse = ctx.saved_tensors
        plan: TreePlan = ctx.plan
        dq, dk, dv = (_buffers(tensor)[0] for tensor in (q, k, v))
        for square in plan.squares:
            rows = slice(square.start, square.stop)
            dq[:, :, rows], dk[:, :, rows], dv[:, :, rows] = flash(
                *(tensor[:, :, rows] for tensor in (grad, q, k, v, out, lse)),
                0.0,
                square.causal,
                attn_mask=_mask(square, plan, q),
                scale=ctx.scale,
            )
        for rect in plan.rectangles:
            rows, keys = slice(rect.start, rect.stop), slice(rect.key_start, rect.key_stop)
            piece_q, piece_k, piece_v = flash(
                grad[:, :, rows],
                q[:, :, rows],
                k[:, :, keys],
                v[:, :, keys],
                out[:, :, rows],
                lse[:, :, rows],
                0.0,
                False,
                scale=ctx.scale,
            )
            dq[:, :, rows] += piece_q
            dk[:, :, keys] += piece_k
            dv[:, :, keys] += piece_v
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def _buffers(like_BHTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp, tokens outermost in memory as the kernel has them; sums in at least float32."""
    batch, heads, tokens, size = like_BHTD.shape
    dtype = torch.promote_types(like_BHTD.dtype, torch.float32)
    out = torch.empty(batch, tokens, heads, size, dtype=dtype, device=like_BHTD.device)
    lse = torch.empty(batch, tokens, heads, dtype=dtype, device=like_BHTD.device)
    return out.transpose(1, 2), lse.transpose(1, 2)


def _mask(square: Square, plan: TreePlan, like: torch.Tensor) -> torch.Tensor | None:
    return None if square.causal else plan.mask(square.start, square.stop, like.dtype, like.device)

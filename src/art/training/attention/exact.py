"""Tree attention for any device and dtype: by one dense mask, and written out block by block.

The dense mask is the reference; its memory and time grow with T squared. What no flash kernel computes (soft
caps, and sinks where the rectangles cannot run) is written out; scores are recomputed in the backward, so
only those of one block are in memory at once.

Letters: B = batch, H = query heads, K = key heads, T = tokens, R = rows of a block, S = its keys, D = head
size.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from art.training.attention.pieces import TreePlan


def attend_dense(
    query_BHTD: torch.Tensor, key_BKTD: torch.Tensor, value_BKTD: torch.Tensor, scale: float, plan: TreePlan
) -> torch.Tensor:
    """Attention of every token to its ancestors and itself, [B, H, T, D]."""
    mask_TT = plan.dense_mask
    shared = query_BHTD.shape[1] != key_BKTD.shape[1]
    return scaled_dot_product_attention(
        query_BHTD, key_BKTD, value_BKTD, attn_mask=mask_TT, scale=scale, enable_gqa=shared
    )


TOKENS = 2
"""The dimension of tokens."""


def attend_exact(
    query_BHTD: torch.Tensor,
    key_BKTD: torch.Tensor,
    value_BKTD: torch.Tensor,
    scale: float,
    plan: TreePlan,
    *,
    softcap: float | None = None,
    sinks_H: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes attention on [B, H, T, D]. `plan` is in masked blocks (`windowed`).

    `softcap`: scores are `softcap * tanh(score / softcap)` (Gemma 2, arXiv 2408.00118). `sinks_H`: one more
    score per head that takes its share of the softmax and has no value (GPT-OSS).
    """
    outs = []
    for square in plan.squares:
        query = query_BHTD.narrow(TOKENS, square.start, square.rows)
        key, value = _keys(square.ancestors, square.start, square.rows, key_BKTD, value_BKTD)
        inputs = (query, key, value, square.mask, scale, softcap, sinks_H)
        outs.append(
            checkpoint(_block, *inputs, use_reentrant=False, preserve_rng_state=False)
            if torch.is_grad_enabled()
            else _block(*inputs)
        )
    return torch.cat(outs, dim=TOKENS)


def _keys(
    ancestors: torch.Tensor | None, start: int, rows: int, *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    own = tuple(tensor.narrow(TOKENS, start, rows) for tensor in tensors)
    if ancestors is None or not len(ancestors):
        return own
    return tuple(
        torch.cat([tensor.index_select(TOKENS, ancestors), rows_], dim=TOKENS)
        for tensor, rows_ in zip(tensors, own, strict=True)
    )


def _block(
    query_BHRD: torch.Tensor,
    key_BKSD: torch.Tensor,
    value_BKSD: torch.Tensor,
    mask_RS: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks_H: torch.Tensor | None,
) -> torch.Tensor:
    batch, heads, rows, _ = query_BHRD.shape
    groups = key_BKSD.shape[1]
    query = query_BHRD.unflatten(1, (groups, heads // groups))
    scores = (query @ key_BKSD.unsqueeze(2).transpose(-1, -2)) * scale
    exact = torch.promote_types(scores.dtype, torch.float32)
    scores = scores.to(exact)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask_RS is not None:
        scores = scores + mask_RS
    if sinks_H is not None:
        sink = sinks_H.to(exact).view(1, groups, heads // groups, 1, 1).expand(batch, -1, -1, rows, 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key_BKSD.shape[TOKENS]]
    return (weights.to(value_BKSD.dtype) @ value_BKSD.unsqueeze(2)).flatten(1, 2)

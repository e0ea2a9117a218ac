"""Tree attention by one dense mask: the reference, for any device and dtype. Memory and time grow with T
squared.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

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

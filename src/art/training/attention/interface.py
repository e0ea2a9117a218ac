"""The attention function that transformers' models call, and its registration.

The plan travels as the keyword argument `tree_plan` through the model's forward. Without one (rows that are
scored as they are) the attention is plain causal, so rows are padded on the right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from art.errors import ConfigurationError
from art.training.attention import dense, rectangles
from art.training.attention.plan import TreePlan

NAME = "art_tree"
"""The `attn_implementation` of a model that trains on token trees."""


def register() -> None:
    """Make the name known to transformers. Calling it again changes nothing."""
    AttentionInterface.register(NAME, tree_attention)


def tree_attention(
    module: torch.nn.Module,
    query_BHTD: torch.Tensor,
    key_BKTD: torch.Tensor,
    value_BKTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    tree_plan: TreePlan | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """[B, T, H, D] as transformers expects it. Raises ConfigurationError for what the tree cannot do."""
    for name in ("softcap", "s_aux"):
        if options.get(name) is not None:
            raise ConfigurationError(
                f"{type(module).__name__} uses {name!r}, which tree attention does not know."
            )
    if attention_mask is not None:
        raise ConfigurationError("Tree attention takes no attention mask: pad rows on the right.")
    length = tree_plan.depth if tree_plan is not None else query_BHTD.shape[2]
    if sliding_window is not None and length > sliding_window:
        raise ConfigurationError(
            f"A path of {length} tokens exceeds the model's sliding window of {sliding_window}, "
            "which tree attention does not know."
        )
    scale = query_BHTD.shape[-1] ** -0.5 if scaling is None else scaling
    if tree_plan is None:
        shared = query_BHTD.shape[1] != key_BKTD.shape[1]
        out = scaled_dot_product_attention(
            query_BHTD, key_BKTD, value_BKTD, is_causal=True, scale=scale, enable_gqa=shared
        )
    else:
        kernel = rectangles if tree_plan.kernel == "rectangles" else dense
        out = kernel.attend(query_BHTD, key_BKTD, value_BKTD, scale, tree_plan)
    return out.transpose(1, 2).contiguous(), None

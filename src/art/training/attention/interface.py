"""The attention function that transformers' models call, and its registration.

The plan travels as the keyword argument `tree_plan` through the model's forward. Without one (rows that are
scored as they are) the attention is causal, so rows are padded on the right.

What a family adds to plain attention comes as further arguments, layer by layer: a sliding window, a soft cap
on the scores, sinks. What is none of these is refused: silently left out, it would be another model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from art.errors import ConfigurationError
from art.training.attention.dense import attend_dense
from art.training.attention.exact import attend_exact
from art.training.attention.flex import attend_flex
from art.training.attention.pieces import TreePlan
from art.training.attention.rectangles import attend_rectangles
from art.training.attention.sinks import attend_with_sinks
from art.training.attention.windowed import chain, cuts, windowed

NAME = "art_tree"
"""The `attn_implementation` of a model that trains on token trees."""

REFUSED = ("position_bias", "head_mask", "block_table")
"""Arguments that would change the scores in ways the tree does not know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCall:
    """What one layer asked for, for those who want to know."""

    window: int | None
    softcap: float | None
    sinks: bool


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
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    tree_calls: list[LayerCall] | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """[B, T, H, D] as transformers expects it. Raises ConfigurationError for what the tree cannot do."""
    for name in REFUSED:
        if options.get(name) is not None:
            raise ConfigurationError(
                f"{type(module).__name__} uses {name!r}, which tree attention does not know."
            )
    if attention_mask is not None:
        raise ConfigurationError("Tree attention takes no attention mask: pad rows on the right.")
    if tree_calls is not None:
        tree_calls.append(LayerCall(window=sliding_window, softcap=softcap, sinks=s_aux is not None))
    scale = query_BHTD.shape[-1] ** -0.5 if scaling is None else scaling
    tensors = (query_BHTD, key_BKTD, value_BKTD)
    if tree_plan is None:
        out = _rows(*tensors, scale, sliding_window, softcap, s_aux)
    else:
        out = _tree(*tensors, scale, tree_plan, sliding_window, softcap, s_aux)
    return out.transpose(1, 2).contiguous(), None


def _tree(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    plan: TreePlan,
    window: int | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    if plan.kernel == "flex" and softcap is None and s_aux is None:
        return attend_flex(query, key, value, scale, plan, window if cuts(plan, window) else None)
    if softcap is not None or (s_aux is not None and plan.kernel != "rectangles"):
        blocks = windowed(plan, window, query, blocks=True)
        return attend_exact(query, key, value, scale, blocks, softcap=softcap, sinks_H=s_aux)
    if cuts(plan, window):
        plan = windowed(plan, window, query)
    if plan.kernel != "rectangles":
        return attend_dense(query, key, value, scale, plan)
    query, key, padded = _same_size(query, key, value)
    if s_aux is not None:
        out = attend_with_sinks(query, key, padded, scale, plan, s_aux)
    else:
        out = attend_rectangles(query, key, padded, scale, plan)
    return out[..., : value.shape[-1]]


def _rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    """Rows as they are: causal."""
    length = query.shape[2]
    if softcap is None and s_aux is None and (window is None or length <= window):
        shared = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=shared)
    return _tree(query, key, value, scale, chain(length), window, softcap, s_aux)


def _same_size(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The flash kernels want values as wide as keys (DeepSeek's are not): zeros change neither scores nor
    sums.
    """
    wide, narrow = query.shape[-1], value.shape[-1]
    if wide >= narrow:
        return query, key, pad(value, (0, wide - narrow)) if wide > narrow else value
    return pad(query, (0, narrow - wide)), pad(key, (0, narrow - wide)), value

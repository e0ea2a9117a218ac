"""The attention function that transformers' models call, and its registration.

The plan travels as the keyword argument `tree_plan` through the model's forward. Without one (rows that are
scored as they are) the attention is causal, so rows are padded on the right.

What a family adds to plain attention comes as further arguments, layer by layer: a sliding window, a soft cap
on the scores, sinks. What is none of these is refused: silently left out, it would be another model.

Under a sliding window a query attends to an ancestor-or-self fewer than `window` tokens above it. Depth
counts, not distance in the row: siblings in between are not on the path. transformers' convention, for every
family: a window of 3 is the token itself and the two before it. Rows are cut into blocks. The keys of a block
are those that at least one of its rows sees, so the cost of a row is at most `window + block` keys, however
deep the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from art.errors import ConfigurationError
from art.training.attention.exact import attend_dense, attend_exact
from art.training.attention.flex import attend_flex
from art.training.attention.pieces import Ints, Square, TreePlan
from art.training.attention.rectangles import attend_rectangles, attend_with_sinks


def window_cuts(plan: TreePlan, window: int | None) -> bool:
    """Returns whether the window hides anything: some path is longer than it."""
    return window is not None and plan.depth > window


def windowed_plan(
    plan: TreePlan, window: int | None, like: torch.Tensor, *, blocks: bool = False
) -> TreePlan:
    """The plan of the same tree for layers with this window (None: the whole path).

    In masked blocks, for `rectangles`, and where `blocks` asks for them whatever the kernel; else one dense
    mask. Masks are made in the dtype and on the device of `like`, the queries. Kept for the next layer.
    """
    size = plan.depth if window is None else min(window, plan.depth)
    blocks = blocks or plan.kernel == "rectangles"
    if (size, blocks) not in plan.derived:
        plan.derived[size, blocks] = (_in_blocks if blocks else _in_one)(plan, size, like)
    return plan.derived[size, blocks]


def chain_plan(length: int) -> TreePlan:
    """The plan of rows that are scored as they are: one path, to derive windows from."""
    return TreePlan(end_T=np.full(length, length), depth_T=np.arange(length), kernel="dense")


def _in_one(plan: TreePlan, window: int, like: torch.Tensor) -> TreePlan:
    rows = np.arange(len(plan.end_T))
    mask = _additive(_sees(plan, rows, rows, window), like)
    return TreePlan(end_T=plan.end_T, depth_T=plan.depth_T, kernel="dense", dense_mask=mask)


def _in_blocks(plan: TreePlan, window: int, like: torch.Tensor) -> TreePlan:
    return TreePlan(
        end_T=plan.end_T,
        depth_T=plan.depth_T,
        kernel="rectangles",
        block=plan.block,
        squares=tuple(_blocks(plan, window, like)),
    )


def _blocks(plan: TreePlan, window: int, like: torch.Tensor) -> Iterator[Square]:
    size = len(plan.end_T)
    exact = torch.promote_types(like.dtype, torch.float32)  # what the rectangles compute in
    for start in range(0, size, plan.block):
        stop = min(start + plan.block, size)
        rows = np.arange(start, stop)
        # What any row of the block sees before the block is an ancestor of its first row.
        above = np.flatnonzero(plan.end_T[:start] > start)
        sees = _sees(plan, rows, np.concatenate([above, rows]), window)
        seen = np.flatnonzero(sees.any(axis=0))  # every row of the block sees itself, so all of them stay
        yield Square(
            start=start,
            stop=stop,
            ancestors=torch.as_tensor(above[seen[seen < len(above)]], device=like.device),
            mask=_additive(sees[:, seen], like.new_zeros(0, dtype=exact)),
        )


def _sees(plan: TreePlan, queries: Ints, keys: Ints, window: int) -> npt.NDArray[np.bool_]:
    on_path = (keys[None, :] <= queries[:, None]) & (queries[:, None] < plan.end_T[keys][None, :])
    return on_path & (plan.depth_T[queries][:, None] - plan.depth_T[keys][None, :] < window)


def _additive(sees: npt.NDArray[np.bool_], like: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(sees.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(torch.as_tensor(~sees, device=like.device), float("-inf"))


NAME = "art_tree"
"""The `attn_implementation` of a model that trains on token trees."""

REFUSED = ("position_bias", "head_mask", "block_table")
"""Arguments that would change the scores in ways the tree does not know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeLayerCall:
    """The inputs of one layer, for observers."""

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
    tree_calls: list[TreeLayerCall] | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Computes attention on [B, T, H, D] as transformers expects it. Raises ConfigurationError for
    unsupported inputs.
    """
    for name in REFUSED:
        if options.get(name) is not None:
            raise ConfigurationError(
                f"{type(module).__name__} uses {name!r}, which tree attention does not know."
            )
    if attention_mask is not None:
        raise ConfigurationError("Tree attention takes no attention mask: pad rows on the right.")
    if tree_calls is not None:
        tree_calls.append(TreeLayerCall(window=sliding_window, softcap=softcap, sinks=s_aux is not None))
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
        return attend_flex(query, key, value, scale, plan, window if window_cuts(plan, window) else None)
    if softcap is not None or (s_aux is not None and plan.kernel != "rectangles"):
        blocks = windowed_plan(plan, window, query, blocks=True)
        return attend_exact(query, key, value, scale, blocks, softcap=softcap, sinks_H=s_aux)
    if window_cuts(plan, window):
        plan = windowed_plan(plan, window, query)
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
    return _tree(query, key, value, scale, chain_plan(length), window, softcap, s_aux)


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

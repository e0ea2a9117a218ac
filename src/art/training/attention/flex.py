"""Tree attention on a GPU by FlexAttention: one compiled kernel that skips the blocks nobody attends to.

Which blocks of 128 x 128 pairs are empty, full or mixed follows from the smallest and largest `end` of a
block's keys; only in mixed ones is the mask asked pair by pair. Dong et al., "Flex Attention", arXiv
2412.05496.

Letters: T = tokens, rounded up to whole blocks where padded; Q, K = blocks of queries and keys.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from art.training.attention.pieces import Ints, TreePlan

FLEX_BLOCK = 128
"""What the kernel is tuned for."""
ONE_KERNEL = {"FORCE_USE_FLEX_ATTENTION": True}
"""Rows of less than a block would take a kernel made for decoding, which has no form for float32."""

Bools = npt.NDArray[np.bool_]


def attend_flex(
    query_BHTD: torch.Tensor,
    key_BKTD: torch.Tensor,
    value_BKTD: torch.Tensor,
    scale: float,
    plan: TreePlan,
    window: int | None = None,
) -> torch.Tensor:
    """Attention of every token to its ancestors and itself, [B, H, T, D]. Off a GPU: slowly, forward only."""
    if window not in plan.block_masks:
        device = query_BHTD.device
        plan.block_masks[window] = block_mask(plan.end_T, plan.depth_T, device, window=window)
    attend = _compiled() if query_BHTD.device.type == "cuda" else attend_blocks
    query, key, value = (_in_blocks(one) for one in (query_BHTD, key_BKTD, value_BKTD))
    out: torch.Tensor = attend(query, key, value, plan.block_masks[window], scale)
    return out[:, :, : query_BHTD.shape[2]]


def attend_blocks(
    query_BHQSD: torch.Tensor,
    key_BKQSD: torch.Tensor,
    value_BKQSD: torch.Tensor,
    mask: BlockMask,
    scale: float,
) -> torch.Tensor:
    """Attention of whole blocks, [B, H, T, D]. From these shapes the compiler knows that T is a multiple of a
    block, and leaves out the checks of its end.
    """
    query, key, value = (one.flatten(2, 3) for one in (query_BHQSD, key_BKQSD, value_BKQSD))
    shared = query.shape[1] != key.shape[1]
    out: torch.Tensor = flex_attention(
        query, key, value, block_mask=mask, scale=scale, enable_gqa=shared, kernel_options=ONE_KERNEL
    )
    return out


def _in_blocks(one_BHTD: torch.Tensor) -> torch.Tensor:
    padding = -one_BHTD.shape[2] % FLEX_BLOCK
    padded = pad(one_BHTD, (0, 0, 0, padding)) if padding else one_BHTD
    return padded.unflatten(2, (-1, FLEX_BLOCK))


@cache
def _compiled() -> Any:
    # Dynamic: every micro-batch has another length, and none is worth a compilation of its own.
    return torch.compile(attend_blocks, dynamic=True)


def block_mask(
    end_T: Ints, depth_T: Ints, device: torch.device | str, *, window: int | None = None
) -> BlockMask:
    """The mask `k <= q < end[k]`, and, with a window, `depth[q] - depth[k] < window`."""
    size = len(end_T)
    blocks = -(-size // FLEX_BLOCK)
    # Padding attends to itself only: an empty row would have no softmax.
    padded = np.arange(size, blocks * FLEX_BLOCK)
    end_T = np.concatenate([end_T, padded + 1])
    depth_T = np.concatenate([depth_T, np.zeros_like(padded)])
    some_QK, full_QK = _blocks(end_T, depth_T, window)
    end, depth = torch.as_tensor(end_T, device=device), torch.as_tensor(depth_T, device=device)

    def attends(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (k <= q) & (q < end[k])

    def attends_nearby(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return attends(b, h, q, k) & (depth[q] - depth[k] < window)

    return BlockMask.from_kv_blocks(
        *_ordered(some_QK & ~full_QK, device),
        *_ordered(full_QK, device),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=attends if window is None else attends_nearby,
        seq_lengths=(len(end_T), len(end_T)),
    )


def _blocks(end_T: Ints, depth_T: Ints, window: int | None) -> tuple[Bools, Bools]:
    """Returns the blocks in which any pair attends (or might), and those in which all do."""
    end_KB, depth_KB = end_T.reshape(-1, FLEX_BLOCK), depth_T.reshape(-1, FLEX_BLOCK)
    first_Q = np.arange(0, len(end_T), FLEX_BLOCK)[:, None]
    below_QK = first_Q > first_Q.T
    some_QK = (below_QK & (end_KB.max(1) > first_Q)) | np.eye(len(first_Q), dtype=bool)
    full_QK = below_QK & (end_KB.min(1) > first_Q + FLEX_BLOCK - 1)
    if window is not None:
        low, high = depth_KB.min(1), depth_KB.max(1)
        some_QK &= low[:, None] - high < window
        full_QK &= high[:, None] - low < window
    return some_QK, full_QK


def _ordered(blocks_QK: Bools, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Per block of queries: how many blocks of keys, and which, those first. With batch and head of one."""
    order_QK = np.argsort(~blocks_QK, axis=1, kind="stable")
    count_Q = torch.as_tensor(blocks_QK.sum(1).astype(np.int32), device=device)
    return count_Q[None, None], torch.as_tensor(order_QK.astype(np.int32), device=device)[None, None]

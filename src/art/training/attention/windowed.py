"""The tree's mask for layers that see a window only: a query attends to an ancestor-or-self fewer than
`window` tokens above it. Depth counts, not distance in the row: siblings in between are not on the path.

transformers' convention, for every family: a window of 3 is the token itself and the two before it.

Rows are cut into blocks. The keys of a block are those that at least one of its rows sees, so the cost of a
row is at most `window + block` keys, however deep the tree.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from art.training.attention.pieces import Ints, Square, TreePlan


def cuts(plan: TreePlan, window: int | None) -> bool:
    """Whether the window hides anything: some path is longer than it."""
    return window is not None and plan.depth > window


def windowed(plan: TreePlan, window: int | None, like: torch.Tensor, *, blocks: bool = False) -> TreePlan:
    """The plan of the same tree for layers with this window (None: the whole path).

    In masked blocks, for `rectangles`, and where `blocks` asks for them whatever the kernel; else one dense
    mask. Masks are made in the dtype and on the device of `like`, the queries. Kept for the next layer.
    """
    size = plan.depth if window is None else min(window, plan.depth)
    blocks = blocks or plan.kernel == "rectangles"
    if (size, blocks) not in plan.derived:
        plan.derived[size, blocks] = (_in_blocks if blocks else _in_one)(plan, size, like)
    return plan.derived[size, blocks]


def chain(length: int) -> TreePlan:
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

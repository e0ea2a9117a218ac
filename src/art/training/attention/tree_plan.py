"""The tree's attention mask as two kinds of pieces, so that its cost follows the pairs that the tree needs.

In depth-first order the mask is `k <= q < end[k]`. A run is a maximal chain of tokens without a branch.

- A long run with many descendants is a full rectangle: all its descendants x the run.
- The rows are cut into blocks. The rows of a block attend to each other and to the ancestors of its first
  row, as the mask says: that is all they can see. Ancestors whose rectangle they lie in are left out here.

So a row is computed once in its block and once for each rectangle it lies in, and these parts are merged.
Where blocks begin is chosen so that few pairs are computed in vain: see `block_cuts`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from art.training.attention.flex import block_mask
from art.training.attention.pieces import (
    BLOCK,
    Chains,
    Ints,
    KeyPool,
    Rectangle,
    Square,
    TreePlan,
    block_cuts,
)

LONG = 64
"""A run of at least this many tokens, with enough descendants, is a rectangle."""


def plan_attention(
    end_T: Ints,
    depth_T: Ints,
    kernel: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    block: int = BLOCK,
    long: int = LONG,
    parts: Collection[int] = (),
) -> TreePlan:
    """Plan the attention of one micro-batch, whose queries are of `dtype`.

    parts: where batches begin that are computed as in a pass of their own, so that no block has rows of two.
    """
    if kernel == "dense":
        rows = np.arange(len(end_T))
        attends = (rows[None, :] <= rows[:, None]) & (rows[:, None] < end_T[None, :])
        mask = torch.zeros(attends.shape, dtype=dtype, device=device)
        mask.masked_fill_(torch.as_tensor(~attends, device=device), float("-inf"))
        return TreePlan(end_T=end_T, kernel=kernel, depth_T=depth_T, block=block, dense_mask=mask)
    if kernel == "flex":
        mask = {None: block_mask(end_T, depth_T, device)}
        return TreePlan(end_T=end_T, kernel=kernel, depth_T=depth_T, block=block, block_masks=mask)
    chains = Chains.from_ends(end_T)
    below_C = chains.end_C - chains.stop_C
    wide_C = (chains.length_C >= long) & (chains.length_C * below_C >= 4 * long * long)
    exact = torch.promote_types(dtype, torch.float32)  # what the rectangles compute in
    squares = tuple(_squares(end_T, chains, wide_C, block, exact, device, parts))
    return TreePlan(
        end_T=end_T,
        kernel=kernel,
        depth_T=depth_T,
        block=block,
        squares=squares,
        pool=KeyPool.from_squares(squares),
        rectangles=tuple(
            Rectangle(
                start=int(chains.stop_C[at]),
                stop=int(chains.end_C[at]),
                key_start=int(chains.start_C[at]),
                key_stop=int(chains.stop_C[at]),
            )
            for at in np.flatnonzero(wide_C)
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Block:
    """Rows, and the rows above them that they see: gathered ones, then `reach` right before them."""

    start: int
    stop: int
    gathered: Ints
    reach: int
    limit: Ints
    """The number of the block's rows that each key is an ancestor of (or is itself), or more."""

    @property
    def chain(self) -> bool:
        """Returns whether the rows are a chain, so that each sees all keys before it."""
        return int(self.limit.min()) >= self.stop - self.start


def _squares(
    end_T: Ints,
    chains: Chains,
    wide_C: npt.NDArray[np.bool_],
    block: int,
    dtype: torch.dtype,
    device: torch.device | str,
    parts: Collection[int],
) -> list[Square]:
    """The blocks, in order. All chains share one mask: a triangle behind as many zeros as they need."""
    blocks = list(_blocks(end_T, chains, wide_C, block, parts))
    widest = max((len(one.limit) - one.stop + one.start for one in blocks if one.chain), default=0)
    triangle = _mask(np.full(widest + block, block), block, dtype, device)
    return [
        Square(
            start=one.start,
            stop=one.stop,
            ancestors=torch.as_tensor(one.gathered, device=device) if len(one.gathered) else None,
            reach=one.reach,
            mask=_corner(triangle, one)
            if one.chain
            else _mask(one.limit, one.stop - one.start, dtype, device),
        )
        for one in blocks
    ]


def _blocks(
    end_T: Ints, chains: Chains, wide_C: npt.NDArray[np.bool_], block: int, parts: Collection[int]
) -> Iterator[_Block]:
    chain_T = np.repeat(np.arange(len(wide_C)), chains.length_C)
    inline_T = ~wide_C[chain_T]
    root = 0
    for start, stop in pairwise(block_cuts(chains, wide_C, block, parts)):
        # A block in a wide run has the run's earlier rows inline, its rectangle is for what comes after.
        while end_T[root] <= start:
            root = int(end_T[root])
        seen = inline_T[root:start] | (chain_T[root:start] == chain_T[start])
        above = root + np.flatnonzero((end_T[root:start] > start) & seen)
        near = int(np.count_nonzero(above - np.arange(len(above)) == start - len(above)))
        if near <= block and near < len(above):
            near = 0  # few enough to be gathered with the others
        keys = np.concatenate([above, np.arange(start, stop)])
        yield _Block(
            start=start,
            stop=stop,
            gathered=above[: len(above) - near],
            reach=near,
            limit=end_T[keys] - start,
        )


def _corner(triangle: torch.Tensor, one: _Block) -> torch.Tensor:
    """The last columns, so that the diagonal ends where the block's rows do."""
    rows, size = one.stop - one.start, len(triangle)
    first = triangle.shape[1] - size - (len(one.limit) - rows)
    return triangle[:rows, first : first + len(one.limit)]


def _mask(limit: Ints, rows: int, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Additive, [rows, keys], the last keys being the rows: 0 where the row attends to the key, else -inf."""
    mask = torch.zeros(rows, len(limit), dtype=dtype, device=device)
    hidden = torch.arange(rows)[:, None] >= torch.as_tensor(limit)[None, :]
    hidden[:, len(limit) - rows :].logical_or_(torch.ones(rows, rows, dtype=torch.bool).triu(1))
    return mask.masked_fill_(hidden.to(device), float("-inf"))

"""What the attention kernels read: which rows attend to which keys, piece by piece, and where blocks of rows
begin.

Blocks are cut so that their cost is small: an operation costs about as much as it takes to compute some
thousands of pairs, and a block computes all pairs of its rows with its keys.

Letters: T = tokens, C = chains (runs without a branch) in depth-first order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention.flex_attention import BlockMask

Ints = npt.NDArray[np.int64]

BLOCK = 128
"""Rows of a block, at most."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Square:
    """Rows `start:stop` attend among themselves and to rows before them: those of `ancestors`, then the
    `reach` rows right before `start`.

    Without a mask: causally, and there is nothing before them. With one: additive, [rows, keys], the keys in
    that order and the rows themselves last.
    """

    start: int
    stop: int
    ancestors: torch.Tensor | None = None
    reach: int = 0
    mask: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def gathered(self) -> int:
        return 0 if self.ancestors is None else len(self.ancestors)

    @property
    def pooled(self) -> bool:
        """Returns whether its keys can be gathered with others': with a long reach that would copy too
        much.
        """
        return self.gathered > 0 and self.reach == 0

    @property
    def pairs(self) -> int:
        return _causal_pairs(self.rows) if self.mask is None else self.mask.numel()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rectangle:
    """Every row of `start:stop` attends to every row of `key_start:key_stop`."""

    start: int
    stop: int
    key_start: int
    key_stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def keys(self) -> int:
        return self.key_stop - self.key_start


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KeyPool:
    """The keys of all squares that have gathered ones and no reach, so that they are gathered at once."""

    index: torch.Tensor
    """The ancestors and the rows of each square."""
    sizes: tuple[int, ...]
    """Keys of each square."""
    above: torch.Tensor
    """The ancestors of each square."""

    @staticmethod
    def from_squares(squares: Sequence[Square]) -> KeyPool | None:
        """Returns the pool of the squares; None if no square is of that kind."""
        keys, above = [], []
        for square in squares:
            if square.pooled and square.ancestors is not None:
                rows = torch.arange(square.start, square.stop, device=square.ancestors.device)
                above.append(square.ancestors)
                keys += [square.ancestors, rows]
        if not above:
            return None
        sizes = tuple(square.gathered + square.rows for square in squares if square.pooled)
        return KeyPool(index=torch.cat(keys), sizes=sizes, above=torch.cat(above))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TreePlan:
    """The plan that the attention kernels read. `kernel` is `rectangles`, `flex` or `dense`."""

    end_T: Ints
    kernel: str
    depth_T: Ints
    block: int = BLOCK
    """Rows of a block, for the plans derived from this one."""
    squares: tuple[Square, ...] = ()
    """A partition of the rows, in order."""
    rectangles: tuple[Rectangle, ...] = ()
    pool: KeyPool | None = None
    """The pool of keys of the squares; None: each square gathers its own keys."""
    dense_mask: torch.Tensor | None = field(default=None, repr=False)
    """Additive, [T, T], for the dense kernel."""
    block_masks: dict[int | None, BlockMask] = field(default_factory=dict, repr=False)
    """The masks of the flex kernel by the window that a layer sees, None being the whole path."""
    derived: dict[tuple[int, bool], TreePlan] = field(default_factory=dict, repr=False)
    """The same tree's plans for layers that see a window only: made once, used by every such layer."""

    @property
    def depth(self) -> int:
        """Length of the longest path."""
        return int(self.depth_T.max(initial=-1)) + 1

    @property
    def pairs(self) -> int:
        """The number of computed (query, key) pairs per layer and head."""
        if self.kernel == "dense":
            return len(self.end_T) ** 2
        if self.kernel == "flex":
            return max(mask_pairs(mask) for mask in self.block_masks.values())
        return sum(square.pairs for square in self.squares) + sum(r.rows * r.keys for r in self.rectangles)


def mask_pairs(mask: BlockMask) -> int:
    """Returns the number of computed (query, key) pairs of the blocks."""
    full = 0 if mask.full_kv_num_blocks is None else int(mask.full_kv_num_blocks.sum())
    rows, columns = mask.BLOCK_SIZE
    return (int(mask.kv_num_blocks.sum()) + full) * rows * columns


def _causal_pairs(size: int) -> int:
    """Pairs that torch's CPU kernel computes of a causal square: it skips whole blocks of queries."""
    block = 256 if size >= 768 else 64 if size >= 192 else 32
    return sum(min(block, size - at) * min(at + block, size) for at in range(0, size, block))


CALL = 3000
"""What an operation costs beside its pairs, in pairs: between small models (more) and large ones (fewer)."""
DEEP = 32
"""What it costs, in pairs, that the next block begins one key deeper: some of the rows that it will have."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Chains:
    """Maximal chains of tokens: `start:stop`, and `end` after the last descendant."""

    start_C: Ints
    stop_C: Ints
    end_C: Ints

    @property
    def length_C(self) -> Ints:
        return self.stop_C - self.start_C

    @staticmethod
    def from_ends(end_T: Ints) -> Chains:
        # Along a chain the subtree's end stays the same; at each branch, and after it, it changes.
        start_C = np.flatnonzero(np.append(True, end_T[1:] != end_T[:-1])[: len(end_T)])
        return Chains(start_C=start_C, stop_C=np.append(start_C[1:], len(end_T)), end_C=end_T[start_C])


def block_cuts(
    chains: Chains, wide_C: npt.NDArray[np.bool_], block: int, parts: Collection[int] = ()
) -> list[int]:
    """Returns the starts of blocks of at most `block` rows, and the end.

    `wide_C`: chains whose descendants have them by a rectangle. No block goes on from one of them to what
    follows, which would see its rows twice. `parts`: rows at which a block begins in any case.
    """
    places, above, breaks = _places(chains, wide_C, max(1, block // 4), parts)
    cuts, at, last = [0], 0, len(places) - 1
    while at < last:
        best, best_cost = at + 1, float("inf")
        for to in range(at + 1, last + 1):
            rows = places[to] - places[at]
            if rows > block and to > at + 1:
                break
            cost = (CALL + rows * (above[at] + rows) + DEEP * above[to]) / rows
            if cost < best_cost:
                best, best_cost = to, cost
            if breaks[to]:
                break
        at = best
        cuts.append(places[at])
    return cuts


def _places(
    chains: Chains, wide_C: npt.NDArray[np.bool_], step: int, starts: Collection[int]
) -> tuple[list[int], list[int], list[bool]]:
    """Returns the places where a block may begin: at chains, and about every `step` tokens within them. For
    each place, the keys that a block beginning there has inline before its rows, and whether a block must
    begin there.
    """
    places, above, breaks = [], [], []
    open_: list[tuple[int, int]] = []  # end and inline keys of the chains that are being descended
    after_wide = False
    columns = (chains.start_C, chains.stop_C, chains.end_C, wide_C)
    for start, stop, end, wide in zip(*(column.tolist() for column in columns), strict=True):
        while open_ and open_[-1][0] <= start:
            open_.pop()
        inline = open_[-1][1] if open_ else 0
        parts = max(1, (stop - start) // step)
        for part in range(parts):
            offset = (stop - start) * part // parts
            places.append(start + offset)
            above.append(inline + offset)
            breaks.append(part == 0 and (after_wide or start in starts))
        open_.append((end, inline + (0 if wide else stop - start)))
        after_wide = wide
    return [*places, int(chains.stop_C[-1])], [*above, 0], [*breaks, True]

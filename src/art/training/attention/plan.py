"""The tree's attention mask as a few kinds of pieces, so that its cost follows the pairs that the tree needs.

In depth-first order the mask is `k <= q < end[k]`. A run is a maximal chain of tokens without a branch.

- A long run is a causal square, and a full rectangle: all later descendants of the run x the run.
- Everything else is cut into blocks of consecutive rows. The rows of a block attend to each other and to the
  ancestors of its first row, as the mask says: that is all they can see. Ancestors in long runs are left out
  here, their rectangles have them.

So a row is computed once in its square and once for each long run above it, and these parts are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]

BLOCK = 128
"""Rows of a block."""
LONG = 64
"""A run of at least this many tokens is computed by itself."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Square:
    """Rows `start:stop` attend among themselves and to the rows `ancestors`, which come before them.

    Without a mask: causally, and there are no ancestors. With one: additive, [rows, ancestors + rows].
    """

    start: int
    stop: int
    ancestors: torch.Tensor | None = None
    mask: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def pairs(self) -> int:
        return _causal_pairs(self.rows) if self.mask is None else self.mask.numel()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rectangle:
    """Every row of `start:stop` attends to every row of `key_start:key_stop`, or to those of `ancestors`."""

    start: int
    stop: int
    key_start: int = 0
    key_stop: int = 0
    ancestors: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def keys(self) -> int:
        return self.key_stop - self.key_start if self.ancestors is None else len(self.ancestors)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TreePlan:
    """What the attention kernels read. `kernel` is `rectangles` or `dense`."""

    end_T: Ints
    kernel: str
    depth_T: Ints
    block: int = BLOCK
    """Rows of a block, for the plans derived from this one."""
    squares: tuple[Square, ...] = ()
    """A partition of the rows, in order."""
    rectangles: tuple[Rectangle, ...] = ()
    dense_mask: torch.Tensor | None = field(default=None, repr=False)
    """Additive, [T, T], for the dense kernel."""
    derived: dict[tuple[int, bool], TreePlan] = field(default_factory=dict, repr=False)
    """The same tree's plans for layers that see a window only: made once, used by every such layer."""

    @property
    def depth(self) -> int:
        """Length of the longest path."""
        return int(self.depth_T.max(initial=-1)) + 1

    @property
    def pairs(self) -> int:
        """(query, key) pairs that are computed, per layer and head."""
        if self.kernel == "dense":
            return len(self.end_T) ** 2
        return sum(square.pairs for square in self.squares) + sum(r.rows * r.keys for r in self.rectangles)


def plan_attention(
    end_T: Ints,
    depth_T: Ints,
    kernel: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    block: int = BLOCK,
    long: int = LONG,
) -> TreePlan:
    """Plan the attention of one micro-batch. Masks are made in `dtype`, the queries' own."""
    rows = np.arange(len(end_T))
    if kernel == "dense":
        mask = _mask(end_T, rows, rows, dtype, device)
        return TreePlan(end_T=end_T, kernel=kernel, depth_T=depth_T, block=block, dense_mask=mask)
    pieces = list(_pieces(end_T, block, long, dtype, device))
    return TreePlan(
        end_T=end_T,
        kernel=kernel,
        depth_T=depth_T,
        block=block,
        squares=tuple(piece for piece in pieces if isinstance(piece, Square)),
        rectangles=tuple(piece for piece in pieces if isinstance(piece, Rectangle)),
    )


def _pieces(
    end_T: Ints, block: int, long: int, dtype: torch.dtype, device: torch.device | str
) -> Iterator[Square | Rectangle]:
    """Squares in the order of their rows."""
    size = len(end_T)
    bounds = np.flatnonzero(end_T[1:] != end_T[:-1]) + 1  # a run ends where the subtree's end changes
    starts, stops = np.append(0, bounds)[: size and None], np.append(bounds, size)[: size and None]
    short_T = np.repeat(stops - starts < long, stops - starts)
    at = 0
    for start, stop in [(int(a), int(b)) for a, b in zip(starts, stops, strict=True) if b - a >= long]:
        yield from _blocks(end_T, at, start, short_T, block, dtype, device)
        yield Square(start=start, stop=stop)
        above = _ancestors(end_T, start, short_T)
        if len(above):
            yield Rectangle(start=start, stop=stop, ancestors=torch.as_tensor(above, device=device))
        if stop < end_T[start]:
            yield Rectangle(start=stop, stop=int(end_T[start]), key_start=start, key_stop=stop)
        at = stop
    yield from _blocks(end_T, at, size, short_T, block, dtype, device)


def _blocks(
    end_T: Ints,
    start: int,
    stop: int,
    short_T: npt.NDArray[np.bool_],
    block: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Iterator[Square]:
    """Rows `start:stop`, none of them in a long run, in blocks of nearly equal size."""
    count = -(-(stop - start) // block)
    cuts = [start + number * (stop - start) // count for number in range(count + 1)] if count else []
    for first, after in pairwise(cuts):
        above = _ancestors(end_T, first, short_T)
        rows = np.arange(first, after)
        mask = _mask(end_T, rows, np.concatenate([above, rows]), dtype, device)
        yield Square(start=first, stop=after, ancestors=torch.as_tensor(above, device=device), mask=mask)


def _ancestors(end_T: Ints, row: int, short_T: npt.NDArray[np.bool_]) -> Ints:
    """The ancestors of a row that lie in short runs."""
    return np.flatnonzero((end_T[:row] > row) & short_T[:row])


def _mask(
    end_T: Ints, queries: Ints, keys: Ints, dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    """Additive: 0 where the query attends to the key, -inf elsewhere."""
    attends = (keys[None, :] <= queries[:, None]) & (queries[:, None] < end_T[keys][None, :])
    mask = torch.zeros(attends.shape, dtype=dtype, device=device)
    return mask.masked_fill_(torch.as_tensor(~attends, device=device), float("-inf"))


def _causal_pairs(size: int) -> int:
    """Pairs that torch's CPU kernel computes of a causal square: it skips whole blocks of queries."""
    block = 256 if size >= 768 else 64 if size >= 192 else 32
    return sum(min(block, size - at) * min(at + block, size) for at in range(0, size, block))

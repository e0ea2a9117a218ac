"""What the attention kernels read: which rows attend to which keys, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

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


def _causal_pairs(size: int) -> int:
    """Pairs that torch's CPU kernel computes of a causal square: it skips whole blocks of queries."""
    block = 256 if size >= 768 else 64 if size >= 192 else 32
    return sum(min(block, size - at) * min(at + block, size) for at in range(0, size, block))

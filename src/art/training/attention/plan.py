"""The tree's attention mask as squares and rectangles.

In depth-first order the mask `k <= q < end[k]` is a union of contiguous pieces: a causal square for each
run of tokens without a branch, and a full rectangle, all later descendants of the run x the run. Small
subtrees are merged into one square with a dense mask. So the cost follows the pairs that the tree needs,
not the square of its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]

BLOCK = 96
"""Subtrees up to this many tokens are computed together, in one masked square."""


@dataclass(frozen=True, slots=True)
class Square:
    """Rows `start:stop` attend among themselves: causally, or as the tree says."""

    start: int
    stop: int
    causal: bool


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Every row of `start:stop` attends to every row of `key_start:key_stop`."""

    start: int
    stop: int
    key_start: int
    key_stop: int


@dataclass(kw_only=True, slots=True, eq=False)
class TreePlan:
    """What the attention kernels read. `kernel` is `rectangles` or `dense`."""

    end_T: Ints
    kernel: str
    squares: tuple[Square, ...] = ()
    rectangles: tuple[Rectangle, ...] = ()
    depth: int = 0
    """Length of the longest path, for models with a sliding window."""
    _masks: dict[tuple[int, int, torch.dtype, str], torch.Tensor] = field(default_factory=dict)

    def mask(self, start: int, stop: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Additive tree mask of the square `start:stop`: 0 where attended, -inf elsewhere. Made once."""
        key = (start, stop, dtype, str(device))
        if key not in self._masks:
            end = torch.as_tensor(self.end_T[start:stop], device=device)
            row = torch.arange(start, stop, device=device)
            attends = (row[None, :] <= row[:, None]) & (row[:, None] < end[None, :])
            mask = torch.zeros(attends.shape, dtype=dtype, device=device)
            self._masks[key] = mask.masked_fill_(~attends, float("-inf"))
        return self._masks[key]

    @property
    def pairs(self) -> int:
        """(query, key) pairs that are computed, per layer and head."""
        if self.kernel == "dense":
            return len(self.end_T) ** 2
        squares = sum(
            _causal_pairs(s.stop - s.start) if s.causal else (s.stop - s.start) ** 2 for s in self.squares
        )
        return squares + sum((r.stop - r.start) * (r.key_stop - r.key_start) for r in self.rectangles)


def plan_attention(end_T: Ints, depth_T: Ints, kernel: str, block: int = BLOCK) -> TreePlan:
    """Plan the attention of one micro-batch."""
    squares: list[Square] = []
    rectangles: list[Rectangle] = []
    if kernel == "rectangles":
        for piece in _pieces(end_T, block):
            if isinstance(piece, Square):
                squares.append(piece)
            else:
                rectangles.append(piece)
    return TreePlan(
        end_T=end_T,
        kernel=kernel,
        squares=tuple(squares),
        rectangles=tuple(rectangles),
        depth=int(depth_T.max(initial=-1)) + 1,
    )


def _pieces(end_T: Ints, block: int) -> Iterator[Square | Rectangle]:
    end = end_T.tolist()
    stack = [(0, len(end))]  # rows of sibling subtrees under one parent
    while stack:
        start, stop = stack.pop()
        node = waiting = start  # waiting:node are small siblings not yet emitted
        while node < stop:
            after = end[node]
            if after - node > block:
                if waiting < node:
                    yield _square(end, waiting, node)
                branch = _run_end(end, node)
                yield Square(node, branch, True)
                if branch < after:
                    yield Rectangle(branch, after, node, branch)
                    stack.append((branch, after))
                waiting = after
            elif after - waiting > block:
                yield _square(end, waiting, node)
                waiting = node
            node = after
        if waiting < stop:
            yield _square(end, waiting, stop)


def _run_end(end: list[int], node: int) -> int:
    """Index after the run that starts at `node`: the tokens up to the first branch or leaf."""
    after = end[node]
    node += 1
    while node < after and end[node] == after:
        node += 1
    return node


def _square(end: list[int], start: int, stop: int) -> Square:
    return Square(start, stop, all(end[node] >= stop for node in range(start, stop)))


def _causal_pairs(size: int) -> int:
    """Pairs that torch's CPU kernel computes of a causal square: it skips whole blocks of queries."""
    block = 256 if size >= 768 else 64 if size >= 192 else 32
    return sum(min(block, size - at) * min(at + block, size) for at in range(0, size, block))

"""Where blocks of rows begin, so that their cost is small: an operation costs about as much as it takes to
compute some thousands of pairs, and a block computes all pairs of its rows with its keys.

Letters: T = tokens, C = chains (runs without a branch) in depth-first order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from art.training.attention.pieces import Ints

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
    def of(end_T: Ints) -> Chains:
        # Along a chain the subtree's end stays the same; at each branch, and after it, it changes.
        start_C = np.flatnonzero(np.append(True, end_T[1:] != end_T[:-1])[: len(end_T)])
        return Chains(start_C=start_C, stop_C=np.append(start_C[1:], len(end_T)), end_C=end_T[start_C])


def block_cuts(chains: Chains, wide_C: npt.NDArray[np.bool_], block: int) -> list[int]:
    """Where blocks of at most `block` rows begin, and the end.

    `wide_C`: chains whose descendants have them by a rectangle. No block goes on from one of them to what
    follows, which would see its rows twice.
    """
    places, above, breaks = _places(chains, wide_C, max(1, block // 4))
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
    chains: Chains, wide_C: npt.NDArray[np.bool_], step: int
) -> tuple[list[int], list[int], list[bool]]:
    """Where a block may begin: at chains, and about every `step` tokens within them. For each place, the
    keys that a block beginning there has inline before its rows, and whether a block must begin there.
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
            breaks.append(after_wide and part == 0)
        open_.append((end, inline + (0 if wide else stop - start)))
        after_wide = wide
    return [*places, int(chains.stop_C[-1])], [*above, 0], [*breaks, True]

"""The part of the tree that must be forwarded, as runs: maximal chains of tokens without a branch.

A run is forwarded and cut as a whole, so that the planner thinks in runs and never in tokens.

Letters: T = needed nodes, R = their runs in depth-first order, E = loss entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from art.samples.types import LossEntries, TokenTree
from art.training.packing.types import Ints


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Runs:
    """The needed nodes, renumbered, and their runs."""

    tokens_T: Ints
    depth_T: Ints
    run_T: Ints
    """The run that a node lies in."""
    start_R: Ints
    length_R: Ints
    above_R: Ints
    """Tokens on the path before the run."""
    parent_R: Ints
    """The run that it hangs on, -1 at a root."""
    end_R: Ints
    """Index (of a run) after the last descendant."""
    predictor_E: Ints
    """The needed node that predicts each entry."""

    def __len__(self) -> int:
        return len(self.start_R)


def needed_runs(tree: TokenTree, entries: LossEntries) -> Runs:
    """Keep the nodes with a trained strict descendant; the last sampled token of a path predicts nothing."""
    trained_T = np.zeros(len(tree), np.int64)
    trained_T[entries.token_E] = 1
    before_T = np.concatenate([[0], np.cumsum(trained_T)])
    keep_T = before_T[tree.end_T] > before_T[1:]
    number_T = np.concatenate([[0], np.cumsum(keep_T)])
    depth_T = tree.depth_T[keep_T].astype(np.int64)
    end_T = number_T[tree.end_T[keep_T]]
    size = len(end_T)
    # Along a chain the subtree's end stays the same; at each branch, and after it, it changes.
    start_R = np.flatnonzero(np.concatenate([[True], end_T[1:] != end_T[:-1]])) if size else end_T
    length_R = np.diff(np.append(start_R, size))
    run_T = np.repeat(np.arange(len(start_R)), length_R)
    parent_R = tree.parent_T[np.flatnonzero(keep_T)[start_R]]
    return Runs(
        tokens_T=tree.tokens_T[keep_T].astype(np.int64),
        depth_T=depth_T,
        run_T=run_T,
        start_R=start_R,
        length_R=length_R,
        above_R=depth_T[start_R],
        parent_R=np.where(parent_R < 0, -1, run_T[np.minimum(number_T[parent_R], size - 1)]),
        end_R=np.append(run_T, len(start_R))[end_T[start_R]],
        predictor_E=number_T[tree.parent_T[entries.token_E]],
    )

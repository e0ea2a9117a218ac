"""Token tree + loss entries -> micro-batches within a token budget.

Nodes that predict nothing trained are dropped. The rest, in depth-first order, is cut into consecutive
pieces; a piece [a, b) is forwarded behind the path to `a`, so that every node sees its whole context. Cuts
are placed where that path is short: between trees it is empty. Each entry is scored in the one piece that
owns the node which predicts it.

Letters: T = tokens of a micro-batch, P = nodes whose next-token distribution is needed, N = distinct
trained nodes, E = loss entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from art.samples.types import LossEntries, TokenTree

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MicroBatch:
    """One forward pass.

    The worked example of `art.wire.training` in one piece: the leaves 8 and 9 predict nothing and are
    dropped.

        tokens_T 5 6 7    depth_T 0 1 2    end_T 3 3 3
        predictor_P 1 2   (6 predicts the shared 7; 7 predicts 8 and 9)
        target_predictor_N 0 1 1   target_id_N 7 8 9   entry_target_E 0 1 0 2 (entries 0, 2 are both the 7)
    """

    tokens_T: Ints
    depth_T: Ints
    end_T: Ints
    """Index after the last descendant, within the micro-batch."""
    prefix: int
    """The first so many tokens are the re-forwarded path to the piece."""
    predictor_P: Ints
    """Rows whose logits are needed, increasing."""
    target_predictor_N: Ints
    """Which of the predictors."""
    target_id_N: Ints
    entry_E: Ints
    """Which of the batch's entries are scored here."""
    entry_target_E: Ints
    """Which of the targets each of them is."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Packing:
    """All micro-batches of a step."""

    micro_batches: tuple[MicroBatch, ...]
    lower_bound: int
    """Tokens that any method must forward: the nodes with a trained descendant, each once."""
    pairs_needed: int
    """Attention pairs (query, key) of those nodes."""
    budget: int
    """The token budget used: the one asked for, or the longest path if that is longer."""

    @property
    def forwarded(self) -> int:
        return sum(len(micro.tokens_T) for micro in self.micro_batches)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Needed:
    """The nodes that are forwarded, renumbered, and each entry's predictor among them."""

    tokens: Ints
    end: Ints
    depth: Ints
    predictor_E: Ints


def pack(tree: TokenTree, entries: LossEntries, budget: int) -> Packing:
    """Plan one step. `budget`: tokens of one forward pass, re-forwarded paths included."""
    needed = _prune(tree, entries)
    if not len(needed.tokens):
        return Packing(micro_batches=(), lower_bound=0, pairs_needed=0, budget=budget)
    budget = max(budget, int(needed.depth.max()) + 1)
    cuts = _cuts(needed.depth, budget)
    order_E = np.argsort(needed.predictor_E, kind="stable")
    bounds = np.searchsorted(needed.predictor_E[order_E], cuts)
    pieces = [
        _piece(tree, entries, needed, cuts[i], cuts[i + 1], np.sort(order_E[bounds[i] : bounds[i + 1]]))
        for i in range(len(cuts) - 1)
    ]
    return Packing(
        micro_batches=tuple(pieces),
        lower_bound=len(needed.tokens),
        pairs_needed=int((needed.depth + 1).sum()),
        budget=budget,
    )


def _prune(tree: TokenTree, entries: LossEntries) -> _Needed:
    """Keep the nodes with a trained strict descendant; the last sampled token of a path predicts nothing."""
    trained_T = np.zeros(len(tree), np.int64)
    trained_T[entries.token_E] = 1
    before_T = np.concatenate([[0], np.cumsum(trained_T)])
    keep_T = before_T[tree.end_T] > before_T[1:]
    number_T = np.concatenate([[0], np.cumsum(keep_T)])
    return _Needed(
        tokens=tree.tokens_T[keep_T].astype(np.int64),
        end=number_T[tree.end_T[keep_T]],
        depth=tree.depth_T[keep_T].astype(np.int64),
        predictor_E=number_T[tree.parent_T[entries.token_E]],
    )


def _cuts(depth: Ints, budget: int) -> Ints:
    """Where pieces begin, and the end. Each cut is the shallowest node in the second half of what would
    fit.
    """
    cuts = [0]
    size = len(depth)
    while size - cuts[-1] > (room := budget - int(depth[cuts[-1]])):
        start = cuts[-1]
        low = start + max(1, room // 2)
        window = depth[low : start + room + 1]
        # The last of the shallowest: the fuller piece.
        cuts.append(low + len(window) - 1 - int(np.argmin(window[::-1])))
    return np.array([*cuts, size], np.int64)


def _piece(
    tree: TokenTree, entries: LossEntries, needed: _Needed, start: int, stop: int, entry_E: Ints
) -> MicroBatch:
    path = np.flatnonzero(needed.end[:start] > start)
    nodes = np.concatenate([path, np.arange(start, stop)])
    shift = len(path) - start
    # Targets in the order of their predictors, so that a chunk of predictors has a chunk of targets.
    by_node_N, first_N, node_E = np.unique(entries.token_E[entry_E], return_index=True, return_inverse=True)
    order_N = np.argsort(needed.predictor_E[entry_E[first_N]], kind="stable")
    trained_N, rank_N = by_node_N[order_N], np.argsort(order_N)
    predictor_N = needed.predictor_E[entry_E[first_N]][order_N] + shift
    predictor_P, target_predictor_N = np.unique(predictor_N, return_inverse=True)
    return MicroBatch(
        tokens_T=needed.tokens[nodes],
        depth_T=needed.depth[nodes],
        end_T=np.minimum(needed.end[nodes], stop) + shift,
        prefix=len(path),
        predictor_P=predictor_P,
        target_predictor_N=target_predictor_N,
        target_id_N=tree.tokens_T[trained_N].astype(np.int64),
        entry_E=entry_E,
        entry_target_E=rank_N[node_E],
    )

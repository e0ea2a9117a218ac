"""Plain rows instead of a tree, for models whose layers carry a state along the row: each path that is needed
becomes one row, padded on the right.

Every layer is causal, so what stands on the right of a token changes nothing for it, and needs no mask. A
micro-batch of rows is spelled like any other: a forest of chains. Tree attention computes the same from it.

Letters: T = tokens of a micro-batch, R = runs of the tree, W = rows, L = row length, E = loss entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from art.batch.batch_types import LossEntries, TokenTree
from art.training.attention.pieces import Square, TreePlan
from art.training.packing.pack import cut_sequences
from art.training.packing.runs import Ints, MicroBatch, Packing, Runs, needed_runs


def pack_rows(
    tree: TokenTree, entries: LossEntries, budget: int, *, whole_sequences: bool = False
) -> Packing:
    """Plan one step in plain rows. `budget`: tokens of one forward pass, padding included.

    A sequence that lies on one path is scored in one row whatever `whole_sequences` says; one that branches
    may be cut.
    """
    runs = needed_runs(tree, entries)
    if not len(runs):
        return Packing(micro_batches=(), lower_bound=0, pairs_needed=0, budget=budget, cut_sequences=0)
    leaf_W = np.flatnonzero(runs.end_R == np.arange(len(runs)) + 1)
    length_W = runs.above_R[leaf_W] + runs.length_R[leaf_W]
    row_E = _entry_rows(runs, leaf_W, entries)
    batches = group_rows(length_W.tolist(), budget)
    seen_T = np.zeros(len(runs.tokens_T), bool)
    batch_W = np.zeros(len(leaf_W), np.int64)
    micro_batches = []
    for number, rows in enumerate(batches):
        batch_W[rows] = number
        leaves = [int(leaf_W[row]) for row in rows]
        micro_batches.append(_lay_out(tree, entries, runs, leaves, np.array(rows), row_E, seen_T))
    return Packing(
        micro_batches=tuple(micro_batches),
        lower_bound=len(runs.tokens_T),
        pairs_needed=int((runs.depth_T + 1).sum()),
        budget=max(budget, int(length_W.max())),
        cut_sequences=cut_sequences(batch_W[row_E], entries.sequence_E.astype(np.int64)),
    )


def group_rows(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Rows of similar length together, at most `budget` tokens with padding; a longer row is alone.

    No more than half is padding.

    >>> group_rows([17, 65, 17, 17], 8192)
    [[0, 2, 3], [1]]
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda at: lengths[at]):
        filled = lengths[index] + (sum(lengths[at] for at in batches[-1]) if batches else 0)
        padded = lengths[index] * (len(batches[-1]) + 1) if batches else 0
        if batches and padded <= min(budget, 2 * filled):
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def hidden_of_rows(
    decoder: Any, tokens_T: torch.Tensor, depth_T: torch.Tensor, inputs_TD: torch.Tensor | None = None
) -> torch.Tensor:
    """Last hidden states [T, D] of a forest of chains: a row begins where the depth is 0.

    inputs_TD: what the decoder reads in place of the tokens' ids.
    """
    row_T = torch.cumsum(depth_T == 0, 0) - 1
    rows, width = int(row_T[-1]) + 1, int(depth_T.max()) + 1
    values = tokens_T if inputs_TD is None else inputs_TD
    filled_WL = values.new_zeros(rows, width, *values.shape[1:]).index_put((row_T, depth_T), values)
    positions_WL = torch.arange(width, device=tokens_T.device).expand(rows, width)
    name = "input_ids" if inputs_TD is None else "inputs_embeds"
    output = decoder(**{name: filled_WL}, position_ids=positions_WL, use_cache=False)
    hidden: torch.Tensor = output.last_hidden_state[row_T, depth_T]
    return hidden


def plan_of_rows(micro: MicroBatch) -> TreePlan:
    """Returns the pairs that the model's own attention computes for these rows, for the metrics: a causal
    square each.
    """
    starts = np.flatnonzero(micro.depth_T == 0).tolist()
    bounds = zip(starts, [*starts[1:], len(micro.tokens_T)], strict=True)
    return TreePlan(
        end_T=micro.end_T,
        depth_T=micro.depth_T,
        kernel="rows",
        squares=tuple(Square(start=start, stop=stop) for start, stop in bounds),
    )


def _entry_rows(runs: Runs, leaf_W: Ints, entries: LossEntries) -> Ints:
    """The row that scores each entry: the first below its sequence's deepest predictor, where that has this
    entry's predictor too, else the first below its own.
    """
    run_E = runs.run_T[runs.predictor_E]
    first_E = np.searchsorted(leaf_W, run_E)
    sequence_E = entries.sequence_E.astype(np.int64)
    deepest_S = np.zeros(int(sequence_E.max()) + 1, np.int64)
    np.maximum.at(deepest_S, sequence_E, first_E)
    row_E = deepest_S[sequence_E]
    leaf_E = leaf_W[row_E]
    return np.where((run_E <= leaf_E) & (leaf_E < runs.end_R[run_E]), row_E, first_E)


def _lay_out(
    tree: TokenTree,
    entries: LossEntries,
    runs: Runs,
    leaves: Sequence[int],
    rows: Ints,
    row_E: Ints,
    seen_T: npt.NDArray[np.bool_],
) -> MicroBatch:
    """One micro-batch. Marks its nodes in `seen_T`."""
    paths = [_path(runs, leaf) for leaf in leaves]
    length_W = np.array([len(path) for path in paths])
    before = np.append(0, np.cumsum(length_W))
    node_T = np.concatenate(paths)
    fresh = np.unique(node_T[~seen_T[node_T]])
    seen_T[fresh] = True
    entry_E = np.flatnonzero(np.isin(row_E, rows))
    order = np.argsort(rows)
    place_E = order[np.searchsorted(rows[order], row_E[entry_E])]
    predictor_E = before[place_E] + runs.depth_T[runs.predictor_E[entry_E]]
    # Targets in the order of their predictors, so that a chunk of predictors has a chunk of targets.
    id_E = tree.tokens_T[entries.token_E[entry_E]].astype(np.int64)
    ids = int(id_E.max(initial=0)) + 1
    key_N, entry_target_E = np.unique(predictor_E * ids + id_E, return_inverse=True)
    predictor_N, id_N = np.divmod(key_N, ids)
    predictor_P, target_predictor_N = np.unique(predictor_N, return_inverse=True)
    return MicroBatch(
        tokens_T=runs.tokens_T[node_T],
        depth_T=runs.depth_T[node_T],
        end_T=np.repeat(before[1:], length_W),
        repeated=len(node_T) - len(fresh),
        predictor_P=predictor_P,
        target_predictor_N=target_predictor_N,
        target_id_N=id_N,
        entry_E=entry_E,
        entry_target_E=entry_target_E,
    )


def _path(runs: Runs, leaf: int) -> Ints:
    """The nodes from the root to the end of a run."""
    pieces, at = [], leaf
    while at >= 0:
        pieces.append(np.arange(runs.start_R[at], runs.start_R[at] + runs.length_R[at]))
        at = int(runs.parent_R[at])
    return np.concatenate(pieces[::-1])

"""One micro-batch from its runs and its entries.

Letters: T = its tokens, R = its runs, P = predictors, N = targets, E = its entries.
"""

from __future__ import annotations

import numpy as np

from art.samples.types import LossEntries, TokenTree
from art.training.packing.plan import Load
from art.training.packing.runs import Runs
from art.training.packing.types import Ints, MicroBatch


def lay_out(tree: TokenTree, entries: LossEntries, runs: Runs, load: Load, entry_E: Ints) -> MicroBatch:
    """The runs in depth-first order. `entry_E`: the entries that are scored here, increasing."""
    length_R = runs.length_R[load.runs]
    before = np.append(0, np.cumsum(length_R))
    shift_R = runs.start_R[load.runs] - before[:-1]
    node_T = np.arange(before[-1]) + np.repeat(shift_R, length_R)
    # All nodes of a run have the same end: where the first run after its subtree begins.
    end_R = before[np.searchsorted(load.runs, runs.end_R[load.runs])]
    # Targets in the order of their predictors, so that a chunk of predictors has a chunk of targets.
    by_node_N, first_N, node_E = np.unique(entries.token_E[entry_E], return_index=True, return_inverse=True)
    predictor_N = runs.predictor_E[entry_E[first_N]]
    order_N = np.argsort(predictor_N, kind="stable")
    trained_N, rank_N = by_node_N[order_N], np.argsort(order_N)
    predictor_N = predictor_N[order_N]
    predictor_N = predictor_N - shift_R[np.searchsorted(load.runs, runs.run_T[predictor_N])]
    predictor_P, target_predictor_N = np.unique(predictor_N, return_inverse=True)
    return MicroBatch(
        tokens_T=runs.tokens_T[node_T],
        depth_T=runs.depth_T[node_T],
        end_T=np.repeat(end_R, length_R),
        repeated=int(before[-1] - runs.length_R[load.owned].sum()),
        predictor_P=predictor_P,
        target_predictor_N=target_predictor_N,
        target_id_N=tree.tokens_T[trained_N].astype(np.int64),
        entry_E=entry_E,
        entry_target_E=rank_N[node_E],
    )

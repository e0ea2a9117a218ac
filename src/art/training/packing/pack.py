"""Token tree + loss entries -> micro-batches within a token budget.

Nodes that predict nothing trained are dropped. The rest is dealt out to micro-batches in whole subtrees, each
behind the path to it, so that every node sees its whole context; `load_plan.py` chooses where trees are cut.
Each entry is scored in one micro-batch that has its predictor: it can be scored wherever that is forwarded,
because all of its context is there too.

Letters: M = micro-batches, T = tokens of one, R = runs, P = predictors, N = targets, E = loss entries, S =
sequences, I = pairs of a sequence and a run that predicts for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from art.batch.batch_types import LossEntries, TokenTree
from art.training.packing.load_plan import Load, plan_loads
from art.training.packing.runs import (
    Ints,
    MicroBatch,
    Packing,
    Runs,
    SequenceRuns,
    needed_runs,
    sequence_runs,
)


def load_of_runs(runs: Runs, loads: Sequence[Load]) -> Ints:
    """The micro-batch that owns each run [R]: the first that forwards it."""
    owner_R = np.zeros(len(runs), np.int64)
    for number, load in enumerate(loads):
        owner_R[load.owned] = number
    return owner_R


def whole_sequence_loads(runs: Runs, loads: Sequence[Load], sequences: SequenceRuns) -> Ints:
    """The micro-batch of each entry [E]: one that has all predictors of its sequence, where there is one,
    otherwise the one that owns its predictor.
    """
    owner_R = load_of_runs(runs, loads)
    run_I, last_S = sequences.run_I, sequences.last_S
    has_MR = np.zeros((len(loads), len(runs)), np.int64)
    for number, load in enumerate(loads):
        has_MR[number, load.runs] = 1
    whole_MS = np.add.reduceat(has_MR[:, run_I], sequences.first_S, axis=1) == last_S - sequences.first_S + 1
    # A path ends where its last run is owned: that micro-batch has the rest of the path too.
    owner_S = owner_R[run_I[last_S]]
    load_S = np.where(whole_MS[owner_S, np.arange(len(last_S))], owner_S, np.argmax(whole_MS, axis=0))
    rank_E = sequences.rank_E
    return np.where(whole_MS.any(axis=0)[rank_E], load_S[rank_E], owner_R[runs.run_T[runs.predictor_E]])


def cut_sequences(load_E: Ints, sequence_E: Ints) -> int:
    """Sequences with entries in more than one micro-batch."""
    loads = int(load_E.max(initial=0)) + 1
    sequence_of_pair = np.unique(sequence_E * loads + load_E) // loads
    return int((np.unique(sequence_of_pair, return_counts=True)[1] > 1).sum())


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


def pack(tree: TokenTree, entries: LossEntries, budget: int, *, whole_sequences: bool = False) -> Packing:
    """Plan one step. `budget`: tokens of one forward pass, re-forwarded paths included.

    With `whole_sequences`, the entries of a sequence that lies on one path are scored in one micro-batch, as
    losses need that look at a sequence as a whole. A sequence that branches may still be cut:
    `Packing.cut_sequences` counts those. No token is forwarded more for it, only logits.
    """
    runs = needed_runs(tree, entries)
    sequence_E = entries.sequence_E.astype(np.int64)
    budget = max(budget, int(runs.depth_T.max(initial=-1)) + 1)
    if whole_sequences and len(entries):
        sequences = sequence_runs(runs, sequence_E)
        loads = plan_loads(runs, budget, sequences.branching(runs))
        load_E = whole_sequence_loads(runs, loads, sequences)
    else:
        loads = plan_loads(runs, budget)
        load_E = load_of_runs(runs, loads)[runs.run_T[runs.predictor_E]]
    order_E = np.argsort(load_E, kind="stable")
    bounds = np.searchsorted(load_E[order_E], np.arange(len(loads) + 1))
    return Packing(
        micro_batches=tuple(
            lay_out(tree, entries, runs, load, order_E[bounds[number] : bounds[number + 1]])
            for number, load in enumerate(loads)
        ),
        lower_bound=len(runs.tokens_T),
        pairs_needed=int((runs.depth_T + 1).sum()),
        budget=budget,
        cut_sequences=cut_sequences(load_E, sequence_E),
    )

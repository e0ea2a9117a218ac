"""In which micro-batch each entry is scored.

An entry can be scored wherever its predictor is forwarded: all of its context is there too.

Letters: M = micro-batches, R = runs, E = loss entries, S = sequences, I = pairs of a sequence and a run
that predicts for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from art.training.packing.plan import Load
from art.training.packing.runs import Runs
from art.training.packing.types import Ints


def entry_loads(runs: Runs, loads: Sequence[Load], sequence_E: Ints, whole_sequences: bool) -> Ints:
    """The micro-batch of each entry: the one that owns its predictor. With `whole_sequences`, the one that
    has all predictors of its sequence, where there is one.
    """
    owner_R = np.zeros(len(runs), np.int64)
    for number, load in enumerate(loads):
        owner_R[load.owned] = number
    run_E = runs.run_T[runs.predictor_E]
    if not whole_sequences or not len(run_E):
        return owner_R[run_E]
    sequences, rank_E = np.unique(sequence_E, return_inverse=True)
    pair_I = np.unique(rank_E * len(runs) + run_E)
    sequence_I, run_I = np.divmod(pair_I, len(runs))
    last_S = np.append(np.flatnonzero(np.diff(sequence_I)), len(pair_I) - 1)
    first_S = np.append(0, last_S[:-1] + 1)
    has_MR = np.zeros((len(loads), len(runs)), np.int64)
    for number, load in enumerate(loads):
        has_MR[number, load.runs] = 1
    whole_MS = np.add.reduceat(has_MR[:, run_I], first_S, axis=1) == last_S - first_S + 1
    # A path ends where its last run is owned: that micro-batch has the rest of the path too.
    owner_S = owner_R[run_I[last_S]]
    load_S = np.where(whole_MS[owner_S, np.arange(len(sequences))], owner_S, np.argmax(whole_MS, axis=0))
    return np.where(whole_MS.any(axis=0)[rank_E], load_S[rank_E], owner_R[run_E])


def cut_sequences(load_E: Ints, sequence_E: Ints) -> int:
    """Sequences with entries in more than one micro-batch."""
    pairs = np.unique(np.stack([sequence_E, load_E]), axis=1)
    return int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())

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
from art.training.packing.sequences import SequenceRuns
from art.training.packing.types import Ints


def owners(runs: Runs, loads: Sequence[Load]) -> Ints:
    """The micro-batch that owns each run [R]: the first that forwards it."""
    owner_R = np.zeros(len(runs), np.int64)
    for number, load in enumerate(loads):
        owner_R[load.owned] = number
    return owner_R


def whole_sequence_loads(runs: Runs, loads: Sequence[Load], sequences: SequenceRuns) -> Ints:
    """The micro-batch of each entry [E]: one that has all predictors of its sequence, where there is one,
    otherwise the one that owns its predictor.
    """
    owner_R = owners(runs, loads)
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

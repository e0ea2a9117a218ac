"""Which runs a sequence (a rollout) is predicted from, and which subtrees belong together because of it.

Letters: R = runs, E = loss entries, S = sequences, I = pairs of a sequence and a run that predicts for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from art.training.packing.runs import Runs
from art.training.packing.types import Ints


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SequenceRuns:
    """The pairs, sorted. Sequences are renumbered without gaps."""

    rank_E: Ints
    sequence_I: Ints
    run_I: Ints
    first_S: Ints
    """Where a sequence's pairs begin."""
    last_S: Ints
    """Its last pair."""

    def branching(self, runs: Runs) -> tuple[Ints, Ints]:
        """The pairs (sequences, runs) of those sequences that do not lie on one path."""
        last_I = self.run_I[self.last_S][self.sequence_I]
        off_I = runs.end_R[self.run_I] <= last_I
        keep_I = np.isin(self.sequence_I, self.sequence_I[off_I])
        return self.sequence_I[keep_I], self.run_I[keep_I]


def sequence_runs(runs: Runs, sequence_E: Ints) -> SequenceRuns:
    sequences, rank_E = np.unique(sequence_E, return_inverse=True)
    pair_I = np.unique(rank_E * max(1, len(runs)) + runs.run_T[runs.predictor_E])
    sequence_I, run_I = np.divmod(pair_I, max(1, len(runs)))
    bounds = np.searchsorted(sequence_I, np.arange(len(sequences) + 1))
    return SequenceRuns(
        rank_E=rank_E, sequence_I=sequence_I, run_I=run_I, first_S=bounds[:-1], last_S=bounds[1:] - 1
    )


def bundles(items: Sequence[int], runs: Runs, sequence_I: Ints, run_I: Ints) -> list[list[int]]:
    """Disjoint subtrees (their first runs), those that a sequence branches over joined."""
    first = np.sort(np.array(items, np.int64))
    at_I = np.searchsorted(first, run_I, side="right") - 1
    inside_I = (at_I >= 0) & (run_I < runs.end_R[first[at_I]])
    leader = list(range(len(first)))

    def lead(at: int) -> int:
        while leader[at] != at:
            leader[at] = at = leader[leader[at]]
        return at

    met: dict[int, int] = {}
    for sequence, at in zip(sequence_I[inside_I].tolist(), at_I[inside_I].tolist(), strict=True):
        leader[lead(at)] = lead(met.setdefault(sequence, at))
    together: dict[int, list[int]] = {}
    for at, item in enumerate(first.tolist()):
        together.setdefault(lead(at), []).append(item)
    return list(together.values())

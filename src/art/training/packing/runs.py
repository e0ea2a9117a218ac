"""What packing reads and makes: the part of the tree that must be forwarded, as runs; the runs that a
sequence (a rollout) is predicted from; and the micro-batches.

A run is a maximal chain of tokens without a branch. It is forwarded and cut as a whole, so that the planner
thinks in runs and never in tokens.

Letters: T = needed nodes, or tokens of a micro-batch; R = their runs in depth-first order, P = nodes whose
next-token distribution is needed, N = distinct trained nodes, E = loss entries, S = sequences, I = pairs of a
sequence and a run that predicts for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from art.batch.batch_types import LossEntries, TokenTree

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
    repeated: int
    """How many of the tokens are forwarded by an earlier micro-batch too: paths to what lies here."""
    predictor_P: Ints
    """Rows whose logits are needed, increasing."""
    target_predictor_N: Ints
    """Which of the predictors."""
    target_id_N: Ints
    entry_E: Ints
    """Which of the batch's entries are scored here."""
    entry_target_E: Ints
    """Which of the targets each of them is."""

    @staticmethod
    def unscored(tokens_T: Ints, depth_T: Ints, end_T: Ints) -> MicroBatch:
        """Tokens to forward, of which no entry is scored."""
        none = np.zeros(0, np.int64)
        return MicroBatch(
            tokens_T=tokens_T,
            depth_T=depth_T,
            end_T=end_T,
            repeated=0,
            predictor_P=none,
            target_predictor_N=none,
            target_id_N=none,
            entry_E=none,
            entry_target_E=none,
        )


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
    cut_sequences: int
    """Sequences (rollouts) whose entries lie in more than one micro-batch."""

    @property
    def forwarded(self) -> int:
        return sum(len(micro.tokens_T) for micro in self.micro_batches)

    @property
    def fill(self) -> float:
        """Forwarded tokens as a share of what the micro-batches have room for, the last one included."""
        return self.forwarded / (self.budget * max(1, len(self.micro_batches)))


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

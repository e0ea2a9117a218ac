"""What packing makes of a tree.

Letters: T = tokens of a micro-batch, P = nodes whose next-token distribution is needed, N = distinct
trained nodes, E = loss entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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

"""Everything that is known of the loss entries of a step, as tensors; a micro-batch takes its rows.

Letters: E = loss entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from art.samples.types import LossEntries
from art.training.losses.base import LossInputs
from art.wire.algorithm import RatioLevel


@dataclass(kw_only=True, slots=True, eq=False)
class Columns:
    """All entries of a batch. What a pass before the first update finds out is filled in by it."""

    sampled_E: torch.Tensor
    advantage_E: torch.Tensor
    weight_E: torch.Tensor
    sequence_E: torch.Tensor
    proximal_E: torch.Tensor | None = None
    """Under the trainer before the first update; None: the sampler's are used."""
    reference_E: torch.Tensor | None = None
    teacher_E: torch.Tensor | None = None
    value_E: torch.Tensor | None = None
    """The critic's before the first update."""
    return_E: torch.Tensor | None = None
    """What the critic is to predict."""

    def inputs(
        self, logprobs_E: torch.Tensor, entry_E: np.ndarray, *, normalizer: float, ratio: RatioLevel = "token"
    ) -> LossInputs:
        """The rows `entry_E`, whose logprobs are given."""
        rows_E = torch.as_tensor(entry_E, device=logprobs_E.device)
        proximal_E = self.sampled_E if self.proximal_E is None else self.proximal_E
        return LossInputs(
            logprobs_E=logprobs_E,
            sampled_logprobs_E=self.sampled_E[rows_E],
            proximal_logprobs_E=proximal_E[rows_E],
            reference_logprobs_E=None if self.reference_E is None else self.reference_E[rows_E],
            advantages_E=self.advantage_E[rows_E],
            weights_E=self.weight_E[rows_E],
            sequence_E=torch.unique(self.sequence_E[rows_E], return_inverse=True)[1],
            normalizer=normalizer,
            ratio=ratio,
        )


def make_columns(entries: LossEntries, *, dtype: torch.dtype, device: torch.device | str) -> Columns:
    """The batch's arrays in the precision that losses are computed in: at least float32."""
    exact = torch.promote_types(dtype, torch.float32)

    def floats(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, dtype=exact, device=device)

    return Columns(
        sampled_E=floats(entries.logprob_E),
        advantage_E=floats(entries.advantage_E),
        weight_E=floats(entries.weight_E),
        sequence_E=torch.as_tensor(entries.sequence_E, dtype=torch.long, device=device),
        teacher_E=None if entries.teacher_E is None else floats(entries.teacher_E),
    )

"""What a loss is: one function `LossInputs, Params -> LossOutput`, parameters beside it, no other variants
behind flags.

Letters: E = loss entries of one micro-batch. Token that are not trained have no entry, so there is nothing
to mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

MAX_LOG_RATIO = 20.0
"""Log ratios are held within +-20 (a factor of 5e8), so that `exp` stays finite; no gradient flows beyond."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossInputs:
    """One micro-batch.

    `normalizer` belongs to the whole batch and is known before its first micro-batch, so the sum over
    micro-batches equals the loss of one large batch: with weights of 1 and the number of entries, the token
    mean.
    """

    logprobs_E: torch.Tensor
    """Under the weights that are trained; carries the gradient."""
    sampled_logprobs_E: torch.Tensor
    """As recorded by the sampler."""
    advantages_E: torch.Tensor
    weights_E: torch.Tensor
    normalizer: float

    @property
    def log_ratio_E(self) -> torch.Tensor:
        """log(trained probability / sampling probability), bounded."""
        return (self.logprobs_E - self.sampled_logprobs_E).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    def mean(self, term_E: torch.Tensor) -> torch.Tensor:
        """The micro-batch's share of the weighted mean over the batch."""
        return (self.weights_E * term_E).sum() / self.normalizer


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossOutput:
    """The micro-batch's share of the loss, and of metrics: shares of all micro-batches add up."""

    loss: torch.Tensor
    metrics: Mapping[str, torch.Tensor]

"""What a loss is: one function `LossInputs, Params -> LossOutput`, parameters beside it, no other variants
behind flags.

Letters: E = loss entries of one micro-batch, S = their sequences. Tokens that are not trained have no entry,
so there is nothing to mask.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from art.wire.algorithm import RatioLevel

MAX_LOG_RATIO = 20.0
"""Log ratios are held within +-20 (a factor of 5e8), so that `exp` stays finite; no gradient flows beyond."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossInputs:
    """One micro-batch, or one whole batch.

    `normalizer` belongs to the whole batch and is known before its first micro-batch, so the sum over
    micro-batches equals the loss of one large batch: with weights of 1 and the number of entries, the token
    mean. A ratio level above the token needs every sequence whole.
    """

    logprobs_E: torch.Tensor
    """The logprobs under the weights that are trained; they carry the gradient."""
    sampled_logprobs_E: torch.Tensor
    """The logprobs that the sampler recorded."""
    proximal_logprobs_E: torch.Tensor
    """What the ratio divides by: the sampler's, or the trainer's own before the step's first update."""
    advantages_E: torch.Tensor
    weights_E: torch.Tensor
    sequence_E: torch.Tensor
    """Number of the entry's sequence among those present, from 0 (int64)."""
    normalizer: float
    reference_logprobs_E: torch.Tensor | None = None
    """The logprobs under the policy that a KL term measures the distance to."""
    ratio: RatioLevel = "token"
    kept_E: torch.Tensor | None = None
    """The entries that keep their policy term (bool); None: all."""

    def with_own_logprobs(self) -> LossInputs:
        """The same, with the trainer's own logprobs where the sampler has none (NaN): a ratio of 1."""
        own_E = self.logprobs_E.detach()
        return dataclasses.replace(
            self,
            sampled_logprobs_E=self.sampled_logprobs_E.where(~self.sampled_logprobs_E.isnan(), own_E),
            proximal_logprobs_E=self.proximal_logprobs_E.where(~self.proximal_logprobs_E.isnan(), own_E),
        )

    @property
    def token_log_ratio_E(self) -> torch.Tensor:
        """log(trained probability / proximal probability) of each token, bounded."""
        return (self.logprobs_E - self.proximal_logprobs_E).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @property
    def log_ratio_E(self) -> torch.Tensor:
        """The same at the algorithm's level, repeated for each token of a sequence."""
        token_E = self.token_log_ratio_E
        if self.ratio in ("token", "geometric"):  # GMPO takes its mean itself, after clipping
            return token_E
        sequence_E = self.sequence_mean(token_E)
        if self.ratio == "sequence":
            return sequence_E
        if self.ratio == "geometric_average":
            return (token_E + sequence_E) / 2
        return torch.logaddexp(token_E, sequence_E) - torch.log(token_E.new_tensor(2.0))

    def mean(self, term_E: torch.Tensor) -> torch.Tensor:
        """The micro-batch's share of the weighted mean over the batch."""
        return (self.weights_E * term_E).sum() / self.normalizer

    def choose(self, where_E: torch.Tensor, yes: float, no: float) -> torch.Tensor:
        """One number or the other for each entry, in the precision of the loss."""
        return torch.where(where_E, self.weights_E.new_tensor(yes), self.weights_E.new_tensor(no))

    def share(self, value_E: torch.Tensor) -> torch.Tensor:
        """The same of a truth value or of a figure that only informs: a metric."""
        return self.mean(value_E.detach().to(self.weights_E.dtype))

    def sequence_sum(self, term_E: torch.Tensor) -> torch.Tensor:
        """The sum over each entry's sequence, [E]."""
        # There are at most as many sequences as entries; to count them would wait for the device.
        sum_S = torch.zeros_like(term_E).index_add(0, self.sequence_E, term_E)
        return sum_S[self.sequence_E]

    def sequence_mean(self, term_E: torch.Tensor) -> torch.Tensor:
        """The mean over each entry's sequence, [E]."""
        return self.sequence_sum(term_E) / self.sequence_sum(torch.ones_like(term_E))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossOutput:
    """The micro-batch's share of the loss, and of metrics: shares of all micro-batches add up."""

    loss: torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    clipped_E: torch.Tensor | None = None
    """The entries that the loss's clip acted on; None: it has none."""
    masked_E: torch.Tensor | None = None
    """The entries that a mismatch mask dropped; None: nothing masks."""

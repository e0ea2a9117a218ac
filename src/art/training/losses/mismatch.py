"""Engine and trainer never compute quite the same probabilities: what is trained is weighted by, or dropped
for, w = trainer's / sampler's.

Truncation: Yao et al., "Your efficient RL framework secretly brings you off-policy training", 2025.
Sequence masks: Liu et al., "When speed kills stability", 2025. token_mask: IcePop (arXiv:2510.18855).
negative_mask: DeepSeek-V3.2 (arXiv:2512.02556).

Letters: E = loss entries of one micro-batch, whose sequences are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from art.training.losses.base import MAX_LOG_RATIO, LossInputs
from art.wire.algorithm import MismatchSpec

TRUNCATIONS = frozenset({"token_truncate", "sequence_truncate"})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Correction:
    """What the corrections together make of each entry."""

    weights_E: torch.Tensor
    dropped_E: torch.Tensor
    """Where a mask set the weight to 0."""


def correct(
    specs: Sequence[MismatchSpec], x: LossInputs, trainer_E: torch.Tensor, *, weigh: bool
) -> Correction:
    """The product of all corrections; `trainer_E` are the trainer's logprobs, held constant.

    Beside a truncation, masks let its weight through. Alone, token and sequence masks let w through where
    `weigh`, and 1 where the loss's own ratio holds w already.
    """
    weigh = weigh and not any(spec.kind in TRUNCATIONS for spec in specs)
    log_E = (trainer_E.detach() - x.sampled_logprobs_E).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    weights_E, kept_E = torch.ones_like(log_E), torch.ones_like(log_E, dtype=torch.bool)
    for spec in specs:
        weight_E = _log_weight(spec, x, log_E).exp()
        if spec.kind in TRUNCATIONS:
            weights_E = weights_E * weight_E.clamp(spec.low, spec.high)
            continue
        kept_E = kept_E & _kept(spec, x, weight_E)
        if weigh and spec.kind in ("token_mask", "sequence_mask"):
            weights_E = weights_E * weight_E
    return Correction(weights_E=torch.where(kept_E, weights_E, 0.0), dropped_E=~kept_E)


def _log_weight(spec: MismatchSpec, x: LossInputs, log_E: torch.Tensor) -> torch.Tensor:
    if spec.kind in ("sequence_truncate", "sequence_mask"):
        return x.sequence_sum(log_E).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if spec.kind in ("geometric_mask", "negative_mask"):
        return x.sequence_mean(log_E)
    return log_E


def _kept(spec: MismatchSpec, x: LossInputs, weight_E: torch.Tensor) -> torch.Tensor:
    if spec.kind == "negative_mask":
        return (x.sequence_mean(x.advantages_E) >= 0) | (-weight_E.log() <= spec.high)
    inside_E = (weight_E >= spec.low) & (weight_E <= spec.high)
    if spec.kind == "outlier_mask":
        return x.sequence_sum((~inside_E).to(weight_E.dtype)) == 0
    return inside_E

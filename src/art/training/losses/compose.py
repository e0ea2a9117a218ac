"""An algorithm's loss: its token term, weighted for the mismatch, plus the pull towards a reference.

    loss = policy(weights x mismatch) + coefficient x kl

**Mismatch.** Engine and trainer never compute quite the same probabilities: what is trained is weighted by,
or dropped for, w = trainer's / sampler's. Truncation: Yao et al., "Your efficient RL framework secretly
brings you off-policy training", 2025. Sequence masks: Liu et al., "When speed kills stability", 2025.
token_mask: IcePop (arXiv:2510.18855). negative_mask: DeepSeek-V3.2 (arXiv:2512.02556).

**KL(policy || reference)**, estimated from the policy's own samples, one number per token: d = log p - log q,
p: policy, q: reference (Schulman, "Approximating KL Divergence", 2020).

    k1  d               unbiased; as a loss its gradient is zero on average, so it belongs into the reward
    k2  d^2 / 2         biased; on policy its gradient is the divergence's
    k3  exp(-d) - 1 + d unbiased, never negative; its gradient is that of the reversed divergence

Times the ratio, differentiated too, k1 and k3 have the gradient of the divergence on samples of any policy:
d/dp [r k3] = r (k3 + 1 - exp(-d)) = r d (DeepSeek-V3.2, arXiv:2512.02556).

Letters: E = loss entries of one micro-batch, whose sequences are whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from art.batch.algorithms.combine import TRUNCATIONS
from art.errors import TrainingError
from art.training.losses.base import MAX_LOG_RATIO, LossInputs, LossOutput
from art.wire.algorithm import Algorithm, KlSpec, MismatchSpec


def kl_term(spec: KlSpec, logprobs_E: torch.Tensor, reference_E: torch.Tensor) -> torch.Tensor:
    """The estimate per token, [E], with its gradient and without the coefficient. Detach `logprobs_E` to
    shape advantages with it."""
    distance_E = logprobs_E - reference_E
    if spec.estimator == "k1":
        return distance_E
    if spec.estimator == "k2":
        return distance_E.square() / 2
    return torch.expm1((-distance_E).clamp(max=MAX_LOG_RATIO)) + distance_E


def kl_loss(spec: KlSpec, x: LossInputs) -> torch.Tensor:
    """Returns the KL term of the loss, before the coefficient.

    Raises TrainingError when the reference's logprobs were not computed.
    """
    reference_E = x.sampled_logprobs_E if spec.reference == "sampler" else x.reference_logprobs_E
    if reference_E is None:
        raise TrainingError(
            f"The KL term measures the distance to {spec.reference!r}, whose logprobs are missing from the "
            "batch: the step computes them before its first update."
        )
    term_E = kl_term(spec, x.logprobs_E, reference_E)
    return x.mean(x.token_log_ratio_E.exp() * term_E if spec.importance else term_E)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Correction:
    """The combined effect of the corrections on each entry."""

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
        kept_E = kept_E & _kept_by_mask(spec, x, weight_E)
        if weigh and spec.kind in ("token_mask", "sequence_mask"):
            weights_E = weights_E * weight_E
    return Correction(weights_E=torch.where(kept_E, weights_E, 0.0), dropped_E=~kept_E)


def _log_weight(spec: MismatchSpec, x: LossInputs, log_E: torch.Tensor) -> torch.Tensor:
    if spec.kind in ("sequence_truncate", "sequence_mask"):
        return x.sequence_sum(log_E).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if spec.kind in ("geometric_mask", "negative_mask"):
        return x.sequence_mean(log_E)
    return log_E


def _kept_by_mask(spec: MismatchSpec, x: LossInputs, weight_E: torch.Tensor) -> torch.Tensor:
    if spec.kind == "negative_mask":
        return (x.sequence_mean(x.advantages_E) >= 0) | (-weight_E.log() <= spec.high)
    inside_E = (weight_E >= spec.low) & (weight_E <= spec.high)
    if spec.kind == "outlier_mask":
        return x.sequence_sum((~inside_E).to(weight_E.dtype)) == 0
    return inside_E


Loss = Callable[[LossInputs], LossOutput]


def compose(algorithm: Algorithm, term: Loss, *, has_ratio: bool) -> Loss:
    """`has_ratio`: the token term divides by another policy's probability."""

    def loss(inputs: LossInputs) -> LossOutput:
        x = dataclasses.replace(inputs, ratio=algorithm.ratio)
        weighted, metrics, masked_E = _weighted(algorithm, x, has_ratio=has_ratio)
        policy = term(weighted)
        metrics |= {**policy.metrics, "loss/policy": policy.loss.detach()}
        if policy.clipped_E is not None:
            metrics["loss/clipped_share"] = weighted.share(policy.clipped_E)
        total = policy.loss
        if algorithm.kl is not None and algorithm.kl.place == "loss":
            divergence = kl_loss(algorithm.kl, x)
            metrics["loss/kl"] = divergence.detach()
            total = total + algorithm.kl.coefficient * divergence
        return LossOutput(loss=total, metrics=metrics, clipped_E=policy.clipped_E, masked_E=masked_E)

    return loss


def _weighted(
    algorithm: Algorithm, x: LossInputs, *, has_ratio: bool
) -> tuple[LossInputs, dict[str, torch.Tensor], torch.Tensor | None]:
    """The inputs as the policy term sees them (the KL term keeps the plain weights), metrics, and the entries
    that are dropped."""
    if x.kept_E is not None:
        x = dataclasses.replace(x, weights_E=x.weights_E * x.kept_E)
    if not algorithm.mismatch:
        return x, {}, None
    to_sampler = algorithm.ratio_to == "sampler"
    trainer_E = x.logprobs_E if to_sampler else x.proximal_logprobs_E
    correction = correct(algorithm.mismatch, x, trainer_E, weigh=not (has_ratio and to_sampler))
    metrics = {
        "loss/mismatch_dropped": x.share(correction.dropped_E),
        "loss/mismatch_weight_mean": x.share(correction.weights_E),
    }
    weighted = dataclasses.replace(x, weights_E=x.weights_E * correction.weights_E)
    return weighted, metrics, correction.dropped_E

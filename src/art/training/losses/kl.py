"""Estimators of KL(policy || reference) from the policy's own samples, one number per token.

d = log p - log q, p: policy, q: reference (Schulman, "Approximating KL Divergence", 2020).

    k1  d               unbiased; as a loss its gradient is zero on average, so it belongs into the reward
    k2  d^2 / 2         biased; on policy its gradient is the divergence's
    k3  exp(-d) - 1 + d unbiased, never negative; its gradient is that of the reversed divergence

Times the ratio, differentiated too, k1 and k3 have the gradient of the divergence on samples of any policy:
d/dp [r k3] = r (k3 + 1 - exp(-d)) = r d (DeepSeek-V3.2, arXiv:2512.02556).
"""

from __future__ import annotations

import torch

from art.errors import TrainingError
from art.training.losses.base import MAX_LOG_RATIO, LossInputs
from art.wire.algorithm import KlSpec


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
    """What the loss adds, before the coefficient.

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

"""VESPO: -phi(w) A log p with phi(w) = w^k exp(lambda (1 - w)), where w is the product of the ratios over the
sequence. phi(1) = 1, and it fades softly to both sides; nothing is divided by the length.

arXiv:2602.10693. The weight is a constant of the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from art.training.losses.base import MAX_LOG_RATIO, LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class VespoParams:
    k: float = 2.0
    lam: float = 3.0
    k_negative: float = 3.0
    """`k` where the advantage is negative."""
    lam_negative: float = 2.0
    """`lam` where the advantage is negative."""


def vespo(x: LossInputs, params: VespoParams) -> LossOutput:
    negative_E = x.advantages_E < 0
    k_E = x.choose(negative_E, params.k_negative, params.k)
    lam_E = x.choose(negative_E, params.lam_negative, params.lam)
    log_w_E = x.sequence_sum(x.token_log_ratio_E.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    phi_E = (k_E * log_w_E + lam_E * (1 - log_w_E.exp())).exp()
    return LossOutput(
        loss=-x.mean(phi_E * x.advantages_E * x.logprobs_E),
        metrics={"loss/phi_mean": x.share(phi_E)},
    )

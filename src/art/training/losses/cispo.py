"""CISPO: -stop_gradient(clip(r)) A log p. Clipping bounds a token's weight, never silences its gradient.

arXiv:2506.13585. With the defaults the ratio is held within [0, 5] (ScaleRL, arXiv:2510.13786).
"""

from __future__ import annotations

from dataclasses import dataclass

from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class CispoParams:
    epsilon: float = 1.0
    """The ratio counts at least 1 - epsilon."""
    epsilon_high: float = 4.0
    """The ratio counts at most 1 + epsilon_high."""


def cispo(x: LossInputs, params: CispoParams) -> LossOutput:
    ratio_E = x.log_ratio_E.detach().exp()
    clipped_E = ratio_E.clamp(1 - params.epsilon, 1 + params.epsilon_high)
    return LossOutput(loss=-x.mean(clipped_E * x.advantages_E * x.logprobs_E), clipped_E=clipped_E != ratio_E)

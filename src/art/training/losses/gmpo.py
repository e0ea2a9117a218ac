"""GMPO: -A exp(mean over the sequence of the clipped log r). The geometric mean is not carried away by one
token, so a wide clip is enough. As in PPO, the clip acts only where it lowers the objective.

arXiv:2507.20673. A sequence has one advantage: the mean of its tokens'.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class GmpoParams:
    epsilon: float = 0.4
    """A token's log ratio counts at least -epsilon."""
    epsilon_high: float = 0.4
    """A token's log ratio counts at most epsilon_high."""


def gmpo(x: LossInputs, params: GmpoParams) -> LossOutput:
    advantage_E = x.sequence_mean(x.advantages_E)
    log_E = x.token_log_ratio_E
    clipped_E = log_E.clamp(-params.epsilon, params.epsilon_high)
    lower_E = torch.where(advantage_E > 0, torch.minimum(log_E, clipped_E), torch.maximum(log_E, clipped_E))
    ratio_E = x.sequence_mean(lower_E).exp()
    return LossOutput(loss=-x.mean(ratio_E * advantage_E), clipped_E=lower_E.detach() != log_E.detach())

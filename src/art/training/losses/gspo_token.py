"""GSPO-token: -min(s A, clip(s) A). s has the value of the sequence's ratio (the geometric mean over its
tokens) and the gradient of the token's own logprob, so the advantages of tokens are not averaged.

arXiv:2507.18071, section 4.3. With one advantage for the whole sequence its gradient is that of `ppo` with
the sequence's ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class GspoTokenParams:
    epsilon: float = 0.2
    """The ratio earns nothing below 1 - epsilon."""
    epsilon_high: float = 0.2
    """The ratio earns nothing above 1 + epsilon_high."""


def gspo_token(x: LossInputs, params: GspoTokenParams) -> LossOutput:
    own_E = x.logprobs_E - x.logprobs_E.detach()  # 0, with the gradient of the token
    ratio_E = (x.sequence_mean(x.token_log_ratio_E.detach()) + own_E).exp()
    clipped_E = ratio_E.clamp(1 - params.epsilon, 1 + params.epsilon_high)
    surrogate_E = torch.minimum(ratio_E * x.advantages_E, clipped_E * x.advantages_E)
    silent_E = surrogate_E.detach() != (ratio_E * x.advantages_E).detach()
    return LossOutput(loss=-x.mean(surrogate_E), clipped_E=silent_E)

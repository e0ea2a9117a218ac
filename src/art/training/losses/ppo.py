"""Clipped surrogate: -min(r A, clip(r) A). GRPO is this with group-normalised advantages; DAPO raises
`epsilon_high`.

arXiv:1707.06347, 2402.03300, 2503.14476. Left out: dual clip, a penalty towards a reference policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    epsilon: float = 0.2
    """The ratio earns nothing below 1 - epsilon."""
    epsilon_high: float = 0.2
    """The ratio earns nothing above 1 + epsilon_high."""


def ppo(x: LossInputs, params: Params) -> LossOutput:
    ratio_E = x.log_ratio_E.exp()
    clipped_E = ratio_E.clamp(1 - params.epsilon, 1 + params.epsilon_high)
    surrogate_E = torch.minimum(ratio_E * x.advantages_E, clipped_E * x.advantages_E)
    share = x.mean((clipped_E.detach() != ratio_E.detach()).to(ratio_E.dtype))
    return LossOutput(loss=-x.mean(surrogate_E), metrics={"loss/clipped_share": share})

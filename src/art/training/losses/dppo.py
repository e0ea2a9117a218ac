"""DPPO with the binary total variation: -r A, silent where the token's probability has already moved by more
than a bound in the direction of its advantage. A ratio says little of a rare token: 1e-5 to 1e-3 is a
ratio of 100, and no distance at all.

arXiv:2602.04879.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class DppoParams:
    low: float = 0.2
    """The fall of the probability beyond which an entry with a negative advantage has no gradient."""
    high: float = 0.2
    """The rise of the probability beyond which an entry with a positive advantage has no gradient."""


def dppo(x: LossInputs, params: DppoParams) -> LossOutput:
    moved_E = x.logprobs_E.detach().exp() - x.proximal_logprobs_E.exp()
    silent_E = torch.where(x.advantages_E > 0, moved_E > params.high, moved_E < -params.low)
    term_E = x.log_ratio_E.exp() * x.advantages_E
    return LossOutput(loss=-x.mean(torch.where(silent_E, 0.0, term_E)), clipped_E=silent_E)

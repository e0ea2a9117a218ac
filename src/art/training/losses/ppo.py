"""Clipped surrogate: -min(r A, clip(r) A). GRPO is this with group-normalised advantages, DAPO raises
`epsilon_high`, GSPO takes the sequence's ratio.

arXiv:1707.06347, 2402.03300, 2503.14476, 2507.18071.

The surrogate has no bound where the advantage is negative and the ratio large. Dual clip (arXiv:1912.09729)
and the two-sided clip of INTELLECT-2 (arXiv:2505.07291) bound it there, both in the same way: max(..., c A).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from art.errors import ConfigurationError
from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class PpoParams:
    epsilon: float = 0.2
    """The ratio earns nothing below 1 - epsilon."""
    epsilon_high: float = 0.2
    """The ratio earns nothing above 1 + epsilon_high."""
    dual_clip: float | None = None
    """The upper bound of the ratio where the advantage is negative (papers: 3)."""
    delta: float | None = None
    """INTELLECT-2's name of the same bound (paper: 4)."""

    def __post_init__(self) -> None:
        if self.dual_clip is not None and self.delta is not None:
            raise ConfigurationError(
                f"dual_clip {self.dual_clip!r} and delta {self.delta!r} are one bound by two names: give one."
            )
        if self.bound is not None and self.bound <= 1 + self.epsilon_high:
            raise ConfigurationError(
                f"The bound of the ratio, {self.bound!r} (dual_clip or delta), lies above 1 + epsilon_high = "
                f"{1 + self.epsilon_high!r}, or it would cut what the clip lets through."
            )

    @property
    def bound(self) -> float | None:
        return self.delta if self.dual_clip is None else self.dual_clip


def ppo(x: LossInputs, params: PpoParams) -> LossOutput:
    ratio_E = x.log_ratio_E.exp()
    clipped_E = ratio_E.clamp(1 - params.epsilon, 1 + params.epsilon_high)
    bounded_E = ratio_E if params.bound is None else ratio_E.clamp(max=params.bound)
    surrogate_E = torch.minimum(bounded_E * x.advantages_E, clipped_E * x.advantages_E)
    silent_E = surrogate_E.detach() != (ratio_E * x.advantages_E).detach()
    return LossOutput(loss=-x.mean(surrogate_E), clipped_E=silent_E)

"""SAPO: -A (4 / tau) sigmoid(tau (r - 1)). A soft gate instead of a clip: the gradient fades with the
distance of the ratio from 1, on policy it is that of the plain ratio.

arXiv:2511.20347.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from art.errors import ConfigurationError
from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class SapoParams:
    tau: float = 1.0
    """How soon the gate closes where the advantage is positive."""
    tau_negative: float = 1.05
    """The same where it is not."""

    def __post_init__(self) -> None:
        if not (self.tau and self.tau_negative):
            raise ConfigurationError(
                f"tau {self.tau!r} and tau_negative {self.tau_negative!r} of loss 'sapo' are above 0."
            )


def sapo(x: LossInputs, params: SapoParams) -> LossOutput:
    tau_E = x.choose(x.advantages_E > 0, params.tau, params.tau_negative)
    gate_E = torch.sigmoid(tau_E * (x.log_ratio_E.exp() - 1)) * 4 / tau_E
    return LossOutput(loss=-x.mean(gate_E * x.advantages_E), metrics={})

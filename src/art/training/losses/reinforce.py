"""REINFORCE: -A log p (Williams, 1992). Only exact for samples of the very policy that is trained."""

from __future__ import annotations

from dataclasses import dataclass

from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforceParams:
    """The parameters of the loss: none."""


def reinforce(x: LossInputs, params: ReinforceParams) -> LossOutput:
    return LossOutput(loss=-x.mean(x.advantages_E * x.logprobs_E), metrics={})

"""Supervised: -log p of what is shown, in proportion to the weights. No advantages, no other policy."""

from __future__ import annotations

from dataclasses import dataclass

from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossEntropyParams:
    """The parameters of the loss: none."""


def cross_entropy(x: LossInputs, params: CrossEntropyParams) -> LossOutput:
    return LossOutput(loss=-x.mean(x.logprobs_E), metrics={})

"""The term of the loss, with torch: the trainer alone imports it."""

from __future__ import annotations

from art.training.losses.base import LossInputs, LossOutput
from art_spelling.loss import SpoParams


def spo(x: LossInputs, params: SpoParams) -> LossOutput:
    """E: the tokens that are trained."""
    ratio_E = x.log_ratio_E.exp()
    penalty_E = x.advantages_E.abs() * (ratio_E - 1) ** 2 / (2 * params.epsilon)
    loss = -x.mean(ratio_E * x.advantages_E - penalty_E)
    return LossOutput(loss=loss, metrics={"loss/penalty": x.mean(penalty_E.detach())})

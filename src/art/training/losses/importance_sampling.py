"""-r A: the policy gradient on samples of another policy, without any bound. On policy it is REINFORCE.

With a teacher's advantages (teacher's logprob - policy's) it is on-policy distillation: the policy gradient
of the reverse KL to the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass

from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportanceSamplingParams:
    """The parameters of the loss: none."""


def importance_sampling(x: LossInputs, params: ImportanceSamplingParams) -> LossOutput:
    return LossOutput(loss=-x.mean(x.log_ratio_E.exp() * x.advantages_E), metrics={})

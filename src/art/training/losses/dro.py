"""DRO: -A log p + (beta / 2) (log r)^2. A quadratic penalty on the log ratio holds the policy near the one
that sampled; nothing is clipped, so samples of any policy can be trained.

arXiv:2405.19107, as Kimi k1.5 (arXiv:2501.12599) has it: the penalty acts without an advantage, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from art.training.losses.base import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class DroParams:
    beta: float = 0.05
    """The strength of the penalty."""


def dro(x: LossInputs, params: DroParams) -> LossOutput:
    penalty_E = params.beta / 2 * (x.logprobs_E - x.proximal_logprobs_E).square()  # a square needs no bound
    return LossOutput(
        loss=x.mean(penalty_E - x.advantages_E * x.logprobs_E),
        metrics={"loss/penalty_mean": x.share(penalty_E)},
    )

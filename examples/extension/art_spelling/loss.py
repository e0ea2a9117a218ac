"""`loss_fn="spo"`: Simple Policy Optimization (Xie et al., 2024, arXiv:2401.16025).

The ratio is not clipped: its squared distance to 1 is punished. The client reads this file, too, so it does
without torch. The term of the loss is in `loss_term.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from art.batch.algorithms.facts import LossExtension, LossFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoParams:
    """What `loss_fn_config` may hold."""

    epsilon: float = 0.2
    """The distance of the ratio to 1 at which the gradient ends."""


SPO = LossExtension(
    facts=LossFacts(formula="-(r A - |A| (r - 1)^2 / (2 epsilon))"),
    params=SpoParams,
    term="art_spelling.loss_term:spo",
)

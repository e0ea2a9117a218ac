"""An algorithm's loss: its token term, weighted for the mismatch, plus the pull towards a reference.

loss = policy(weights x mismatch) + coefficient x kl
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from art.training.losses.base import LossInputs, LossOutput
from art.training.losses.kl import kl_loss
from art.training.losses.mismatch import correct
from art.wire.algorithm import Algorithm

Loss = Callable[[LossInputs], LossOutput]


def compose(algorithm: Algorithm, term: Loss, *, has_ratio: bool) -> Loss:
    """`has_ratio`: the token term divides by another policy's probability."""

    def loss(inputs: LossInputs) -> LossOutput:
        x = dataclasses.replace(inputs, ratio=algorithm.ratio)
        weighted, metrics, kept = _weighted(algorithm, x, has_ratio=has_ratio)
        policy = term(weighted)
        metrics |= {**policy.metrics, "loss/policy": policy.loss.detach()}
        total = policy.loss
        if algorithm.kl is not None and algorithm.kl.place == "loss":
            divergence = kl_loss(algorithm.kl, x)
            metrics["loss/kl"] = divergence.detach()
            total = total + algorithm.kl.coefficient * divergence
        return LossOutput(loss=total, metrics=metrics, kept=kept)

    return loss


def _weighted(
    algorithm: Algorithm, x: LossInputs, *, has_ratio: bool
) -> tuple[LossInputs, dict[str, torch.Tensor], torch.Tensor | None]:
    """The inputs as the policy term sees them (the KL term keeps the plain weights), metrics, and how many
    entries are kept."""
    if not algorithm.mismatch:
        return x, {}, None
    to_sampler = algorithm.ratio_to == "sampler"
    trainer_E = x.logprobs_E if to_sampler else x.proximal_logprobs_E
    correction = correct(algorithm.mismatch, x, trainer_E, weigh=not (has_ratio and to_sampler))
    metrics = {
        "loss/mismatch_dropped": x.share(correction.dropped_E),
        "loss/mismatch_weight_mean": x.share(correction.weights_E),
    }
    weighted = dataclasses.replace(x, weights_E=x.weights_E * correction.weights_E)
    return weighted, metrics, (~correction.dropped_E).sum()

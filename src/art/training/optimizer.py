"""AdamW of a step: its numbers may change from step to step, its moments stay."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from art.errors import TrainingError
from art.wire.training import OptimizerSpec


def make_optimizer(parameters: Sequence[torch.nn.Parameter], spec: OptimizerSpec) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters,
        lr=spec.learning_rate or 0.0,  # each step brings its own
        betas=spec.betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        foreach=True,
    )


def has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Whether any parameter would be moved by more than its momentum and its decay."""
    gradients = (one.grad for group in optimizer.param_groups for one in group["params"])
    return any(gradient is not None and bool(gradient.any()) for gradient in gradients)


def step_optimizer(
    optimizer: torch.optim.Optimizer, spec: OptimizerSpec, *, learning_rate: float, loss: float
) -> float:
    """Clip and step; returns the gradient's norm before clipping. Gradients are cleared whatever happens.

    Raises TrainingError before anything moved when loss or gradient are not finite.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, spec.max_grad_norm))
    try:
        if not (math.isfinite(norm) and math.isfinite(loss)):
            raise TrainingError(
                f"The loss is {loss!r} and its gradient norm {norm!r}; the adapter was left as it was. "
                "Lower the learning rate, or look at the rewards and logprobs of this batch."
            )
        for group in optimizer.param_groups:
            group.update(lr=learning_rate, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
    return norm

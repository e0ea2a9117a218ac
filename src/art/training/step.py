"""One training step: token tree and loss entries in, one optimizer step, metrics out.

Letters: E = loss entries of one micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from art.errors import TrainingError
from art.samples.types import LossEntries, TokenTree
from art.training.columns import make_columns
from art.training.losses.registry import Loss
from art.training.policy import Policy
from art.training.tally import Progress, Tally
from art.wire.training import OptimizerSpec, TrainRequest


def train_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    tree: TokenTree,
    entries: LossEntries,
    request: TrainRequest,
    *,
    loss: Loss,
    token_budget: int,
    progress: Progress = lambda done, total: None,
) -> dict[str, float]:
    """Accumulate gradients over the micro-batches of the tree, clip them, step, and return the step's
    metrics.

    Raises TrainingError before the optimizer moves when loss or gradient are not finite.
    """
    optimizer.zero_grad(set_to_none=True)  # of a step that failed half way
    packing = policy.pack(tree, entries, token_budget)
    columns = make_columns(entries, dtype=policy.dtype, device=policy.device)
    tally = Tally(packing, progress)
    for micro in packing.micro_batches:
        scores, plan = policy.entry_scores(micro)
        inputs = columns.inputs(scores.logprobs_E, micro.entry_E, normalizer=request.normalizer)
        output = loss(inputs)
        output.loss.backward()
        tally.add(micro, plan, inputs, scores.entropies_E, output)
    return tally.metrics(request, grad_norm=_step(optimizer, request.optimizer, tally.loss))


def make_optimizer(parameters: Sequence[torch.nn.Parameter], spec: OptimizerSpec) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters,
        lr=spec.learning_rate,
        betas=spec.betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        foreach=True,
    )


def configure_optimizer(optimizer: torch.optim.Optimizer, spec: OptimizerSpec) -> None:
    """The rate and the other numbers may change from step to step; the moments stay."""
    for group in optimizer.param_groups:
        group.update(lr=spec.learning_rate, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)


def _step(optimizer: torch.optim.Optimizer, spec: OptimizerSpec, loss: float) -> float:
    """Clip and step; returns the norm before clipping. Gradients are cleared whatever happens."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, spec.max_grad_norm))
    try:
        if not (math.isfinite(norm) and math.isfinite(loss)):
            raise TrainingError(
                f"The loss is {loss!r} and its gradient norm {norm!r}; the adapter was left as it was. "
                "Lower the learning rate, or look at the rewards and logprobs of this batch."
            )
        configure_optimizer(optimizer, spec)
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
    return norm

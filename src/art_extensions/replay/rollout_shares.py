"""Each rollout's share of a step's gradient.

Of a rollout i, g_i is the gradient of its terms of the step's loss: with the advantages, the weights and the
divisor that the whole step gave them, at the weights before the step, without dropout. The gradient of the
step is g = sum of all g_i, and

    share_i  = <g_i, g> / <g, g>        all shares add up to 1; a negative one pulls against the step
    cosine_i = <g_i, g> / (|g_i| |g|)

Letters: E = loss entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from art.batch.balance_sheet import MASKED
from art.batch.batch_types import LossEntries, TokenTree
from art.tracking.step_record import read_rollouts
from art.training.step import BatchStep, Learner
from art.training.tally import Progress, Tally, TokenColumns
from art.training.trainer import Trainer
from art.wire.jobs import TrainJobRequest
from art.wire.training import TrainRequest
from art_extensions.replay.made_step import SentBatch
from art_extensions.replay.recorded_step import RecordedStep
from art_extensions.replay.recorded_tables import ReplayError

NOTHING_MOVES = {"data/step_num_gradient_steps": 0.0}
"""The metrics of a batch that is measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientShare:
    """The part of a gradient that one rollout has."""

    norm: float
    share: float
    cosine: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutShare:
    """A trained rollout, and its part of the gradient."""

    rollout: str
    place: str
    """GROUP.PLACE in the recorded step, counted from 0."""
    reward: float | None
    advantage: float | None
    """The mean over its tokens; None where the trainer computes it."""
    tokens: int
    gradient: GradientShare


class MeasuringTrainer(Trainer):
    """A trainer that can measure the gradients of a batch's rollouts instead of moving the weights."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._measures = False
        self._found: list[GradientShare] = []

    def measure(self, sent: SentBatch) -> list[GradientShare]:
        """Returns the parts of the rollouts, by their numbers (`LossEntries.sequence_E`). The model is open
        at the step that the batch starts from, and stays there.

        Raises ReplayError where the gradient is zero.
        """
        self._measures = True
        try:
            self.train(sent.tree, sent.entries, sent.request)
        finally:
            self._measures = False
        return self._found

    def _update(
        self,
        learner: Learner,
        tree: TokenTree,
        entries: LossEntries,
        request: TrainRequest,
        *,
        token_budget: int,
        progress: Progress,
    ) -> tuple[dict[str, float], TokenColumns | None]:
        if not self._measures:
            return super()._update(
                learner, tree, entries, request, token_budget=token_budget, progress=progress
            )
        self._weights.activate(self._model(request.model).adapter)  # without dropout
        step = BatchStep(learner, tree, entries, request, token_budget)
        step.prepare()
        self._found = _measure(step)
        return dict(NOTHING_MOVES), None


def _measure(step: BatchStep) -> list[GradientShare]:
    everything_E = np.arange(len(step.entries), dtype=np.int64)
    _compute(step, everything_E)
    whole = {key: one.grad.double() for key, one in _trained(step) if one.grad is not None}
    square = sum(float(one.square().sum()) for one in whole.values())
    if not square:
        raise ReplayError("the gradient of the step is zero: no rollout has a share of it")
    found = []
    for number in range(int(step.entries.sequence_E.max()) + 1):
        rows_E = everything_E[step.entries.sequence_E == number]
        _compute(step, rows_E)
        scale = step.normalizer / step.whole_normalizer  # a minibatch's loss is the mean over itself
        product, own = 0.0, 0.0
        for key, one in _trained(step):
            if one.grad is not None:
                gradient = one.grad.double() * scale
                product += float((gradient * whole[key]).sum()) if key in whole else 0.0
                own += float(gradient.square().sum())
        cosine = product / (own * square) ** 0.5 if own else 0.0
        found.append(GradientShare(norm=own**0.5, share=product / square, cosine=cosine))
    step.learner.optimizer.zero_grad(set_to_none=True)
    return found


def _compute(step: BatchStep, rows_E: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Gives the parameters the gradient of some entries."""
    step.gradient(rows_E, Tally(1, lambda done, total: None, step.record([rows_E])))


def _trained(step: BatchStep) -> Sequence[tuple[int, torch.nn.Parameter]]:
    groups = step.learner.optimizer.param_groups
    return list(enumerate(one for group in groups for one in group["params"]))


def measure_shares(
    recorded: RecordedStep, trainer: MeasuringTrainer, sent: SentBatch, folder: Path
) -> list[RolloutShare]:
    """Returns the shares of all rollouts of a step that was just made in a folder, the largest first."""
    model = recorded.model
    trainer.open(model.key, model.lora, seed=model.seed, checkpoint=recorded.before)
    found = trainer.measure(sent)
    records = [one for one in read_rollouts(folder, recorded.step) if one.fate in ("trained", MASKED)]
    places = _places(recorded)
    shares = [
        RolloutShare(
            rollout=one.rollout,
            place=places.get(one.rollout, f"{one.group}.{one.place}"),
            reward=one.reward,
            advantage=one.advantage,
            tokens=one.tokens,
            gradient=gradient,
        )
        for one, gradient in zip(records, found, strict=True)
    ]
    return sorted(shares, key=lambda one: -one.gradient.share)


def _places(recorded: RecordedStep) -> dict[str, str]:
    if not isinstance(recorded.request, TrainJobRequest):
        return {}
    return {
        one.rollout: f"{number}.{place}"
        for number, group in enumerate(recorded.request.groups)
        for place, one in enumerate(group.trajectories)
    }

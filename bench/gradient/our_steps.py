"""Our side of `train.py`: one training step of the library, its gradient kept instead of applied."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.training.first_pass import References
from art.training.losses.registry import make_loss
from art.training.policy import Policy, load_policy
from art.training.step import Learner, train_step
from art.training.weights import Weights
from art.wire.algorithm import AdvantageSpec, AggregationSpec, Algorithm, LossSpec
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest

BUDGET = 8192
"""Tokens of one forward pass: the trainer's default."""
ALGORITHM = Algorithm(
    advantage=AdvantageSpec(kind="centered"),
    loss=LossSpec(name="ppo"),
    aggregation=AggregationSpec(kind="token_mean"),
)
"""The clipped surrogate with its mean over all tokens: what TRL calls "dapo" with unscaled rewards."""


class KeptGradient(torch.optim.Optimizer):
    """Keeps the gradient that a step arrives at, and changes nothing."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        super().__init__(list(parameters.values()), {})
        self._parameters = parameters
        self.gradient: dict[str, torch.Tensor] = {}

    def step(self, closure: Any = None) -> None:
        self.gradient = {
            name: parameter.grad.clone()
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
        }


@dataclass(frozen=True, kw_only=True)
class Step:
    """One gradient."""

    seconds: float
    loss: float
    tokens: int
    """Forwarded."""


class OurSteps:
    """The trainer's own step on one model and adapter."""

    def __init__(self, model: Path, adapter: Path) -> None:
        self._policy: Policy = load_policy(str(model), name="bench")
        weights = Weights(self._policy)
        weights.attach("a1", LoraSpec(), seed=0)
        weights.load("a1", adapter)
        weights.activate("a1")
        self._kept = KeptGradient(weights.parameters("a1"))
        self._learner = Learner(
            policy=self._policy,
            optimizer=self._kept,
            loss=make_loss(ALGORITHM),
            references=References(self._policy, weights, "a1"),
        )

    def recorded(self, groups: Sequence[GroupRow]) -> list[GroupRow]:
        """The same rollouts with the logprobs that these weights give them."""
        rows = [sample for group in groups for rollout in group.rollouts for sample in rollout.samples]
        ids = [[int(token) for token in (*row.prompt_ids, *row.completion_ids)] for row in rows]
        scores = dict(zip((row.sample_id for row in rows), self._policy.row_logprobs(ids), strict=True))

        def scored(row: SampleRow) -> SampleRow:
            logprobs = scores[row.sample_id][len(row.prompt_ids) - 1 :]
            return dataclasses.replace(row, completion_logprobs=logprobs)

        def rescored(rollout: RolloutRow) -> RolloutRow:
            return dataclasses.replace(rollout, samples=[scored(row) for row in rollout.samples])

        return [
            dataclasses.replace(group, rollouts=[rescored(one) for one in group.rollouts]) for group in groups
        ]

    def step(self, groups: Sequence[GroupRow]) -> Step:
        begin = time.perf_counter()
        batch = build_batch(groups, algorithm=ALGORITHM)
        request = TrainRequest(
            model="bench",
            step=0,
            algorithm=ALGORITHM,
            optimizer=OptimizerSpec(learning_rate=1.0, max_grad_norm=1e9),
            normalizer=batch.normalizer,
        )
        metrics, _ = train_step(
            self._learner, batch.tree, batch.entries, request, learning_rate=0.0, token_budget=BUDGET
        )
        seconds = time.perf_counter() - begin
        return Step(seconds=seconds, loss=metrics["loss/train"], tokens=int(metrics["data/forwarded_tokens"]))

    @property
    def gradient(self) -> dict[str, torch.Tensor]:
        return self._kept.gradient

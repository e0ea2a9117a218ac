"""The pass before the first update: logprobs of the policies that a step asks (its own, the base without an
adapter, another step's), the entropies of its own where they are asked for, and the critic's values.

Letters: E = loss entries of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from art.engine.builtin.peft_folder import read_adapter
from art.training.causal_lm import without_dropout
from art.training.checkpoint import read_checkpoint
from art.training.critic import Critic
from art.training.distributions import Distributions
from art.training.lora import lora_of
from art.training.minibatches import EntryColumns
from art.training.optimizer import DropoutDraws
from art.training.packing.runs import MicroBatch
from art.training.policy import EntryScores, Policy
from art.training.ranks.deal import Share
from art.training.ranks.group import RankGroup
from art.training.ranks.sums import sum_columns
from art.training.weights import Weights
from art.wire.algorithm import Algorithm
from art.wire.models import STATE_FILE
from art.wire.training import LoraSpec

_NAME = "reference"
ROUNDING = 1e-6
"""Nats by which the entropy of one distribution differs where it is computed twice, in float32."""


class AveragedLora(NamedTuple):
    """A LoRA that follows the policy's."""

    lora: LoraSpec
    weights: Mapping[str, torch.Tensor]
    """The matrices by the names under which they are saved."""


@torch.no_grad()
def copy_weights(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors into those of the same names."""
    for name, one in target.items():
        one.copy_(source[name])


class References:
    """The reference policy. Inside its context the reference computes, without dropout; afterwards `active`
    computes as before, its weights and gradients untouched.
    """

    def __init__(
        self, policy: Policy, weights: Weights, active: str, averaged: AveragedLora | None = None
    ) -> None:
        self._policy, self._weights, self._active = policy, weights, active
        self._averaged = averaged

    @contextmanager
    def base(self) -> Iterator[None]:
        """The model that everything started from."""
        with without_dropout(self._policy.causal_lm), self._weights.disabled():
            yield

    @contextmanager
    def checkpoint(self, folder: Path) -> Iterator[None]:
        """A checkpoint, verified as when a model is opened, or any LoRA of PEFT. Raises CheckpointError."""
        with self._attached(self._spec(folder)):
            self._weights.load(_NAME, folder)
            yield

    @contextmanager
    def average(self) -> Iterator[None]:
        """The LoRA that follows the policy."""
        assert self._averaged is not None
        with self._attached(self._averaged.lora):
            copy_weights(self._averaged.weights, self._weights.parameters(_NAME))
            yield

    @contextmanager
    def _attached(self, spec: LoraSpec | None) -> Iterator[None]:
        with without_dropout(self._policy.causal_lm):
            try:
                self._weights.attach(_NAME, spec, seed=0)
                try:
                    yield
                finally:
                    self._weights.remove(_NAME)
            finally:
                self._weights.activate(self._active)

    def _spec(self, folder: Path) -> LoraSpec | None:
        """Returns the adapter's spec in the folder; None: all weights."""
        if (folder / STATE_FILE).is_file():
            return read_checkpoint(
                folder, base_model=self._policy.name, base_fingerprint=self._policy.fingerprint
            ).lora
        return lora_of(read_adapter(folder))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FirstScores:
    """The scores of all entries, in the batch's order, without gradient."""

    logprobs_E: torch.Tensor
    values_E: torch.Tensor | None
    entropies_E: torch.Tensor | None = None
    """Where they were asked for."""


@torch.no_grad()
def score_entries(
    policy: Policy,
    share: Share,
    drawn: Distributions,
    columns: EntryColumns,
    critic: Critic | None = None,
    *,
    ranks: RankGroup,
    draws: DropoutDraws | None = None,
    entropies: bool = False,
) -> FirstScores:
    """Forward the whole batch once under the policy that is active now: each rank its share, all get all
    scores. Without dropout unless its draws are given.
    """
    logprobs_E = torch.zeros_like(columns.sampled_E)
    values_E = None if critic is None else torch.zeros_like(columns.sampled_E)
    entropies_E = torch.zeros_like(columns.sampled_E) if entropies else None
    with ranks.agree(), without_dropout(policy.causal_lm) if draws is None else nullcontext():
        for number, micro in share.micro_batches:
            if draws is not None:
                draws.seed(number)
            scores, _ = policy.entry_scores(micro, drawn)
            rows_E = torch.as_tensor(micro.entry_E, device=logprobs_E.device)
            logprobs_E[rows_E] = scores.logprobs_E.to(logprobs_E.dtype)
            if entropies_E is not None:
                entropies_E[rows_E] = scores.entropies_E.to(entropies_E.dtype)
            if critic is not None and values_E is not None:
                values_E[rows_E] = critic_values(critic, policy, micro, scores).to(values_E.dtype)
        for micro in share.padded:
            scores, _ = policy.entry_scores(micro, drawn)
            if critic is not None:
                critic_values(critic, policy, micro, scores)
    sum_columns(ranks, (logprobs_E, values_E, entropies_E))
    return FirstScores(logprobs_E=logprobs_E, values_E=values_E, entropies_E=entropies_E)


def critic_values(critic: Critic, policy: Policy, micro: MicroBatch, scores: EntryScores) -> torch.Tensor:
    """The critic's values before the entries of a micro-batch, [E], without gradient."""
    if critic.adapter is None:
        return critic.values(scores.hidden_PD, 0.0)[scores.predictor_E]
    with critic.adapter.computing():
        return critic.own_values(policy, micro)


def highest_entropies(
    entropies_E: torch.Tensor, share: float, counted_E: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """The entries whose entropy is at least the (1 - share) quantile of the counted ones, and that quantile:
    linear between ranks, as in TRL. Equal entropies are kept or not together, and the highest is kept. A
    token that rollouts share may be computed in several micro-batches: what differs by `ROUNDING` is equal.
    """
    exact_E = entropies_E.double()
    least = float(np.quantile(exact_E[counted_E].cpu().numpy(), 1 - share))
    return exact_E >= least - ROUNDING, least


def reference_context(
    references: References, algorithm: Algorithm, folder: str | None
) -> AbstractContextManager[None]:
    """The average, the adapter of a checkpoint, or the base without one."""
    if algorithm.kl is not None and algorithm.kl.reference == "average":
        return references.average()
    return references.base() if folder is None else references.checkpoint(Path(folder))

"""The pass before the first update: logprobs of the policies that a step asks (its own, the base without an
adapter, another step's), and the critic's values.

Letters: E = loss entries of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from art.engine.builtin.peft_folder import read_adapter
from art.training.causal_lm import without_dropout
from art.training.checkpoint import read_checkpoint
from art.training.critic import Critic
from art.training.distributions import Distributions
from art.training.lora import lora_of
from art.training.minibatches import EntryColumns
from art.training.optimizer import DropoutDraws
from art.training.policy import Policy
from art.training.ranks.deal import Share
from art.training.ranks.group import RankGroup
from art.training.ranks.sums import sum_columns
from art.training.weights import Weights
from art.wire.models import STATE_FILE
from art.wire.training import LoraSpec

_NAME = "reference"


class References:
    """The reference policy. Inside its context the reference computes, without dropout; afterwards `active`
    computes as before, its weights and gradients untouched.
    """

    def __init__(self, policy: Policy, weights: Weights, active: str) -> None:
        self._policy, self._weights, self._active = policy, weights, active

    @contextmanager
    def base(self) -> Iterator[None]:
        """The model that everything started from."""
        with without_dropout(self._policy.causal_lm), self._weights.disabled():
            yield

    @contextmanager
    def checkpoint(self, folder: Path) -> Iterator[None]:
        """A checkpoint, verified as when a model is opened, or any LoRA of PEFT. Raises CheckpointError."""
        spec = self._spec(folder)
        with without_dropout(self._policy.causal_lm):
            try:
                self._weights.attach(_NAME, spec, seed=0)
                try:
                    self._weights.load(_NAME, folder)
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
) -> FirstScores:
    """Forward the whole batch once under the policy that is active now: each rank its share, all get all
    scores. Without dropout unless its draws are given.
    """
    logprobs_E = torch.zeros_like(columns.sampled_E)
    values_E = None if critic is None else torch.zeros_like(columns.sampled_E)
    with ranks.agree(), without_dropout(policy.causal_lm) if draws is None else nullcontext():
        for number, micro in share.micro_batches:
            if draws is not None:
                draws.seed(number)
            scores, _ = policy.entry_scores(micro, drawn)
            rows_E = torch.as_tensor(micro.entry_E, device=logprobs_E.device)
            logprobs_E[rows_E] = scores.logprobs_E.to(logprobs_E.dtype)
            if critic is not None and values_E is not None:
                values_P = critic.values(scores.hidden_PD, 0.0)
                values_E[rows_E] = values_P[scores.predictor_E].to(values_E.dtype)
        for micro in share.padded:
            policy.entry_scores(micro, drawn)
    sum_columns(ranks, (logprobs_E, values_E))
    return FirstScores(logprobs_E=logprobs_E, values_E=values_E)


def reference_context(references: References, folder: str | None) -> AbstractContextManager[None]:
    """The adapter of a checkpoint, or the base without one."""
    return references.base() if folder is None else references.checkpoint(Path(folder))

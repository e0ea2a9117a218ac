"""What is known only by asking the policies before the first update: their logprobs, the critic's values.

Letters: E = loss entries of the batch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from art.training.columns import Columns
from art.training.critic import Critic
from art.training.distributions import Distributions
from art.training.dropout import without_dropout
from art.training.packing.types import Packing
from art.training.policy import Policy
from art.training.reference import References


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FirstScores:
    """Of all entries, in the batch's order, without gradient."""

    logprobs_E: torch.Tensor
    values_E: torch.Tensor | None


@torch.no_grad()
def score_entries(
    policy: Policy,
    packing: Packing,
    drawn: Distributions,
    columns: Columns,
    critic: Critic | None = None,
    *,
    dropout: bool = False,
) -> FirstScores:
    """Forward the whole batch once under the policy that is active now, without dropout unless asked."""
    logprobs_E = torch.empty_like(columns.sampled_E)
    values_E = None if critic is None else torch.empty_like(columns.sampled_E)
    for micro in packing.micro_batches:
        with nullcontext() if dropout else without_dropout(policy.causal_lm):
            scores, _ = policy.entry_scores(micro, drawn)
        rows_E = torch.as_tensor(micro.entry_E, device=logprobs_E.device)
        logprobs_E[rows_E] = scores.logprobs_E.to(logprobs_E.dtype)
        if critic is not None and values_E is not None:
            values_P = critic.values(scores.hidden_PD, 0.0)
            values_E[rows_E] = values_P[scores.predictor_E].to(values_E.dtype)
    return FirstScores(logprobs_E=logprobs_E, values_E=values_E)


def reference_context(references: References, folder: str | None) -> AbstractContextManager[None]:
    """The adapter of a checkpoint, or the base without one."""
    return references.base() if folder is None else references.checkpoint(Path(folder))

"""Advantages that need the policies' own numbers: towards a teacher, from a critic, away from a reference.

Letters: E = loss entries of the batch.
"""

from __future__ import annotations

import dataclasses

from art.training.columns import Columns
from art.training.distillation import distillation_advantages
from art.training.first_pass import FirstScores
from art.training.gae import explained_variance, gae, whiten
from art.training.losses.kl import kl_term
from art.wire.algorithm import Algorithm


def shape(columns: Columns, algorithm: Algorithm, first: FirstScores) -> tuple[Columns, dict[str, float]]:
    """The columns with final advantages (and a critic's returns), and metrics of what was added."""
    metrics: dict[str, float] = {}
    columns = dataclasses.replace(columns)
    penalty_E = None
    kl = algorithm.kl
    if kl is not None and kl.place != "loss":
        against_E = columns.sampled_E if columns.reference_E is None else columns.reference_E
        kl_E = kl_term(kl, first.logprobs_E, against_E)
        mean = metrics["loss/kl_policy_ref"] = float(kl_E.mean())
        penalty_E = kl.coefficient * (kl_E - mean if kl.place == "shaped_advantage" else kl_E)
    if columns.teacher_E is not None:
        columns.advantage_E = distillation_advantages(columns.teacher_E, first.logprobs_E)
    if first.values_E is not None:
        spec = algorithm.advantage
        advantages_E, returns_E = gae(
            columns.advantage_E,  # the reward of each rollout
            first.values_E,
            columns.sequence_E,
            spec.gamma,
            spec.lam,
            penalties_E=penalty_E,
        )
        columns.advantage_E, columns.return_E = whiten(advantages_E), returns_E
        explained = explained_variance(first.values_E, returns_E)
        metrics |= {} if explained is None else {"loss/explained_variance": explained}
    elif penalty_E is not None:
        columns.advantage_E = columns.advantage_E - penalty_E
    return columns, metrics

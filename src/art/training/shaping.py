"""Advantages that need the policies' own numbers: towards a teacher, from a critic, away from a reference.

Letters: E = loss entries of the batch, S = trained rollouts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from art.algorithms.needs import taken_off_rewards
from art.errors import TokenMismatchError
from art.samples.advantages import advantages
from art.training.columns import Columns
from art.training.distillation import distillation_advantages
from art.training.first_pass import FirstScores
from art.training.gae import explained_variance, gae, whiten
from art.training.losses.kl import kl_term
from art.wire.algorithm import AdvantageSpec, Algorithm

Rewards = Sequence[Sequence[tuple[float, int]]]
"""See `TrainRequest.rewards`."""


def shape(
    columns: Columns, algorithm: Algorithm, first: FirstScores, rewards: Rewards | None = None
) -> tuple[Columns, dict[str, float]]:
    """The columns with final advantages (and a critic's returns), and metrics of what was added.

    Raises TokenMismatchError where a KL is taken off rewards that are not those of the entries' rollouts.
    """
    metrics: dict[str, float] = {}
    columns = dataclasses.replace(columns)
    penalty_E, kl = None, algorithm.kl
    if kl is not None and kl.place != "loss":
        against_E = columns.sampled_E if columns.reference_E is None else columns.reference_E
        kl_E = kl_term(kl, first.logprobs_E, against_E)
        mean = metrics["loss/kl_policy_ref"] = float(kl_E.mean())
        penalty_E = kl.coefficient * (kl_E - mean if kl.place == "shaped_advantage" else kl_E)
    in_reward = kl is not None and kl.place == "reward"
    if columns.teacher_E is not None:
        columns.advantage_E = distillation_advantages(columns.teacher_E, first.logprobs_E)
    if penalty_E is not None and taken_off_rewards(algorithm):
        columns.advantage_E = _of_net_rewards(columns, algorithm.advantage, penalty_E, rewards or ())
        metrics["loss/advantage_abs"] = float(columns.advantage_E.abs().mean())
    if first.values_E is not None:
        spec = algorithm.advantage
        advantages_E, returns_E = gae(
            columns.advantage_E,  # the reward of each rollout
            first.values_E,
            columns.sequence_E,
            spec.gamma,
            spec.lam,
            penalties_E=penalty_E if in_reward else None,
        )
        columns.advantage_E, columns.return_E = whiten(advantages_E), returns_E
        explained = explained_variance(first.values_E, returns_E)
        metrics |= {} if explained is None else {"loss/explained_variance": explained}
    if penalty_E is not None and not in_reward:
        columns.advantage_E = columns.advantage_E - penalty_E
    return columns, metrics


def _of_net_rewards(
    columns: Columns, spec: AdvantageSpec, penalty_E: torch.Tensor, rewards: Rewards
) -> torch.Tensor:
    """The advantages of rewards that a KL per token is taken off; see `art.samples.advantages`."""
    sequence_E = columns.sequence_E.cpu().numpy()
    cost_E = penalty_E.detach().double().cpu().numpy()
    order_E = np.argsort(sequence_E, kind="stable")
    number_S, start_S = np.unique(sequence_E[order_E], return_index=True)
    rows_S = dict(zip(number_S.tolist(), np.split(order_E, start_S[1:]), strict=True))
    named = sorted(number for rewards_G in rewards for _, number in rewards_G if number >= 0)
    if named != sorted(rows_S):
        raise TokenMismatchError(
            f"A KL in the reward needs the reward of every rollout of the batch, once: `rewards` names "
            f"{len(named)} rollouts, and the entries are of {len(rows_S)}."
        )
    found = advantages(
        [[reward for reward, _ in rewards_G] for rewards_G in rewards],
        [[len(rows_S.get(number, ())) for _, number in rewards_G] for rewards_G in rewards],
        spec,
        [
            [cost_E[rows_S[number]] if number >= 0 else None for _, number in rewards_G]
            for rewards_G in rewards
        ],
    )
    advantage_E = np.empty(len(cost_E))
    for rewards_G, values_G in zip(rewards, found, strict=True):
        for (_, number), value in zip(rewards_G, values_G, strict=True):
            if number >= 0:
                advantage_E[rows_S[number]] = value
    return torch.as_tensor(advantage_E, dtype=columns.advantage_E.dtype, device=columns.advantage_E.device)

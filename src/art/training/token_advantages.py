"""Advantages per token that need the policies' own numbers: towards a teacher, from a critic, away from a
reference.

Generalised advantage estimation (arXiv:1506.02438), a critic's values and rewards -> advantages and returns:

    delta_t = r_t + gamma V_(t+1) - V_t,   A_t = delta_t + gamma lam A_(t+1),   R_t = A_t + V_t

A step is a sampled token: what tools or users wrote in between takes no time, and nothing is worth anything
after the last token. With `turn_gae` a step is a turn: its value is that of its prompt, before its first
token, and its tokens share its advantage.

On-policy distillation: the policy samples, a teacher says how likely it would have sampled the same.

Letters: E = loss entries, those of a sequence in the order of sampling; F = the same, a sequence after the
other; S = trained rollouts.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from art.batch.advantages import RESIDUE, VARIANCE_EPSILON, advantages
from art.batch.algorithms.facts import reshaped_by_trainer, shapes_advantages
from art.batch.turn_advantages import gae_of_turns
from art.errors import TokenMismatchError
from art.training.first_pass import FirstScores
from art.training.losses.compose import kl_term
from art.training.masked_rollouts import Rewards
from art.training.minibatches import EntryColumns
from art.wire.algorithm import AdvantageSpec, Algorithm


def gae(
    rewards_E: torch.Tensor,
    values_E: torch.Tensor,
    sequence_E: torch.Tensor,
    gamma: float,
    lam: float,
    *,
    penalties_E: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, in the dtype of `values_E`; sums are in float64, no gradient flows.

    `rewards_E` holds the reward of its sequence in each entry; it arrives at the sequence's last token.
    `penalties_E` is subtracted from the reward of each single token (a KL in the reward).

    Two tokens of one sequence, values 0.5 and 0.25, reward 1:

    >>> one, half = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.25])
    >>> advantages_E, returns_E = gae(one, half, torch.tensor([0, 0]), gamma=1.0, lam=1.0)
    >>> advantages_E.tolist(), returns_E.tolist()
    ([0.5, 0.75], [1.0, 1.0])
    """
    order_F = torch.argsort(sequence_E, stable=True)
    sequence_F = sequence_E[order_F]
    value_F = values_E.detach()[order_F].double()
    more_F = torch.zeros_like(sequence_F, dtype=torch.bool)  # another token of the sequence follows
    more_F[:-1] = sequence_F[1:] == sequence_F[:-1]
    reward_F = torch.where(more_F, 0.0, rewards_E.detach()[order_F].double())
    if penalties_E is not None:
        reward_F = reward_F - penalties_E.detach()[order_F].double()
    next_F = torch.zeros_like(value_F)
    next_F[:-1] = value_F[1:]
    delta_F = reward_F + gamma * torch.where(more_F, next_F, 0.0) - value_F
    advantage_F = _discounted_sums(delta_F, sequence_F, gamma * lam)
    advantages_E = torch.empty_like(values_E).detach()
    returns_E = torch.empty_like(values_E).detach()
    advantages_E[order_F] = advantage_F.to(values_E.dtype)
    returns_E[order_F] = (advantage_F + value_F).to(values_E.dtype)
    return advantages_E, returns_E


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TurnCredit:
    """Advantages of turns, told to their tokens."""

    advantages_E: torch.Tensor
    returns_E: torch.Tensor
    """What the critic is to predict before the first token of a turn; 0 elsewhere."""
    value_weight_E: torch.Tensor
    """There, the weights of all tokens of the turn; 0 elsewhere."""


def credit_turns(columns: EntryColumns, values_E: torch.Tensor, gamma: float, lam: float) -> TurnCredit:
    """GAE over turns. `columns.advantage_E` holds in each entry what its turn earned.

    Raises TokenMismatchError where the batch does not say where turns begin.
    """
    if columns.first_E is None:
        raise TokenMismatchError(
            "Advantages 'turn_gae' need the places of tokens, and entry_place_E is missing."
        )
    first_E = columns.first_E.cpu().numpy()
    turn_E, start_K = np.cumsum(first_E) - 1, np.flatnonzero(first_E)
    reward_K, value_K, sequence_K = (
        one.detach().cpu().numpy()[start_K].astype(np.float64)
        for one in (columns.advantage_E, values_E, columns.sequence_E)
    )
    advantage_K = np.zeros(len(start_K))
    for number in np.unique(sequence_K):
        mine = np.flatnonzero(sequence_K == number)
        advantage_K[mine] = gae_of_turns(reward_K[mine], value_K[mine], gamma, lam)
    return_E, weight_E = np.zeros(len(first_E)), np.zeros(len(first_E))
    return_E[start_K] = advantage_K + value_K
    weight_E[start_K] = np.bincount(turn_E, columns.weight_E.double().cpu().numpy(), len(start_K))
    like_E = columns.advantage_E
    return TurnCredit(
        advantages_E=like_E.new_tensor(advantage_K[turn_E]),
        returns_E=like_E.new_tensor(return_E),
        value_weight_E=like_E.new_tensor(weight_E),
    )


def whiten(values_E: torch.Tensor) -> torch.Tensor:
    """Mean 0 and (sample) variance 1 over all tokens of the batch, as PPO does with its advantages.

    Equal values, and a single one, give exactly 0.
    """
    if len(values_E) < 2:
        return torch.zeros_like(values_E)
    exact_E = values_E.double()
    residue_E = exact_E - exact_E.mean()
    residue_E = torch.where(residue_E.abs() <= RESIDUE * exact_E.abs().max(), 0.0, residue_E)
    variance = residue_E.square().sum() / (len(values_E) - 1)
    return (residue_E * torch.rsqrt(variance + VARIANCE_EPSILON)).to(values_E.dtype)


def explained_variance(values_E: torch.Tensor, returns_E: torch.Tensor) -> float | None:
    """Returns 1 - Var(return - value) / Var(return): 1 for a perfect critic, at most 0 for one that has
    learned nothing.

    None where all returns are equal: there is nothing to explain.
    """
    exact_E = returns_E.double()
    spread_E = exact_E - exact_E.mean()
    if not len(exact_E) or spread_E.abs().max() <= RESIDUE * exact_E.abs().max():
        return None
    return 1.0 - float((exact_E - values_E.double()).var(correction=0) / spread_E.square().mean())


def _discounted_sums(delta_F: torch.Tensor, sequence_F: torch.Tensor, factor: float) -> torch.Tensor:
    """sum_k factor^k delta_(t+k) within each sequence, by doubling: log2(length) passes over all entries."""
    total_F = delta_F.clone()
    reach, weight = 1, factor
    while reach < len(total_F) and weight > 0.0:
        same_F = sequence_F[reach:] == sequence_F[:-reach]
        if not bool(same_F.any()):
            break
        # Each entry holds the sum over `reach` tokens; the entry `reach` further on holds the next ones.
        total_F[:-reach] += weight * torch.where(same_F, total_F[reach:], 0.0)
        reach, weight = 2 * reach, weight * weight
    return total_F


def distillation_advantages(teacher_logprobs_E: torch.Tensor, logprobs_E: torch.Tensor) -> torch.Tensor:
    """log(teacher's probability / policy's) of each sampled token, no gradient.

    As an advantage it descends the reverse KL from policy to teacher, token by token (Agarwal et al.,
    arXiv:2306.13649; Lu et al., "On-Policy Distillation", 2025): its expectation over what the policy samples
    is -KL(policy || teacher). `logprobs_E` is the policy's own before the step's first update.

    >>> distillation_advantages(torch.tensor([-0.5, -3.0]), torch.tensor([-1.0, -1.0])).tolist()
    [0.5, -2.0]
    """
    return (teacher_logprobs_E - logprobs_E).detach()


def shape_advantages(
    columns: EntryColumns,
    algorithm: Algorithm,
    first: FirstScores,
    rewards: Rewards | None = None,
    masked: frozenset[int] = frozenset(),
) -> tuple[EntryColumns, dict[str, float]]:
    """The columns with final advantages (and a critic's returns), and metrics of what was added. `masked`:
    rollouts without a vote, which are not among the rewards; their advantage is 0.

    Raises TokenMismatchError where the rewards are not those of the entries' rollouts.
    """
    metrics: dict[str, float] = {}
    columns = dataclasses.replace(columns)
    penalty_E, kl = None, algorithm.kl
    if kl is not None and shapes_advantages(kl):
        against_E = columns.sampled_E if columns.reference_E is None else columns.reference_E
        policy_E = columns.sampled_E if kl.source == "sampler" else first.logprobs_E
        kl_E = kl_term(kl, policy_E, against_E)
        voting_E = ~torch.isin(columns.sequence_E, columns.sequence_E.new_tensor(sorted(masked)))
        mean = metrics["loss/kl_policy_ref"] = float((kl_E[voting_E] if voting_E.any() else kl_E).mean())
        penalty_E = kl.coefficient * (kl_E - mean if kl.place == "shaped_advantage" else kl_E)
    in_reward = kl is not None and kl.place == "reward"
    if columns.teacher_E is not None:
        columns.advantage_E = distillation_advantages(columns.teacher_E, first.logprobs_E)
    if reshaped_by_trainer(algorithm):
        cost_E = penalty_E if in_reward else None
        columns.advantage_E = _of_net_rewards(columns, algorithm.advantage, cost_E, rewards or (), masked)
        metrics["loss/advantage_abs"] = float(columns.advantage_E.abs().mean())
    if first.values_E is not None:
        explained = _ask_critic(
            columns, algorithm.advantage, first.values_E, penalty_E if in_reward else None
        )
        metrics |= {} if explained is None else {"loss/explained_variance": explained}
    if penalty_E is not None and not in_reward:
        columns.advantage_E = columns.advantage_E - penalty_E
    return columns, metrics


def _ask_critic(
    columns: EntryColumns, spec: AdvantageSpec, values_E: torch.Tensor, penalties_E: torch.Tensor | None
) -> float | None:
    """Fills in advantages and returns by a critic's values; returns what the values explain."""
    asked_E: torch.Tensor | slice = slice(None)
    if spec.kind == "turn_gae":
        turns = credit_turns(columns, values_E, spec.gamma, spec.lam)
        advantages_E, columns.return_E = turns.advantages_E, turns.returns_E
        columns.value_weight_E, asked_E = turns.value_weight_E, turns.value_weight_E > 0
    else:
        advantages_E, columns.return_E = gae(
            columns.advantage_E,  # the reward of each rollout
            values_E,
            columns.sequence_E,
            spec.gamma,
            spec.lam,
            penalties_E=penalties_E,
        )
    columns.advantage_E = whiten(advantages_E) if spec.whiten else advantages_E
    return explained_variance(values_E[asked_E], columns.return_E[asked_E])


def _of_net_rewards(
    columns: EntryColumns,
    spec: AdvantageSpec,
    penalty_E: torch.Tensor | None,
    rewards: Rewards,
    masked: frozenset[int],
) -> torch.Tensor:
    """The advantages of rewards, of which a KL per token may be taken off; see `art.batch.advantages`."""
    sequence_E = columns.sequence_E.cpu().numpy()
    order_E = np.argsort(sequence_E, kind="stable")
    number_S, start_S = np.unique(sequence_E[order_E], return_index=True)
    rows_S = dict(zip(number_S.tolist(), np.split(order_E, start_S[1:]), strict=True))
    named = sorted(number for rewards_G in rewards for _, number in rewards_G if number >= 0)
    if named != sorted(rows_S.keys() - masked):
        raise TokenMismatchError(
            f"The trainer's advantages need the reward of every rollout of the batch, once: `rewards` names "
            f"{len(named)} rollouts, and the entries are of {len(rows_S)}, {len(masked)} of them masked."
        )
    penalties = None
    if penalty_E is not None:
        cost_E = penalty_E.detach().double().cpu().numpy()
        penalties = [
            [cost_E[rows_S[number]] if number >= 0 else None for _, number in rewards_G]
            for rewards_G in rewards
        ]
    found = advantages(
        [[reward for reward, _ in rewards_G] for rewards_G in rewards],
        [[len(rows_S.get(number, ())) for _, number in rewards_G] for rewards_G in rewards],
        spec,
        penalties,
    )
    advantage_E = np.zeros(len(sequence_E))
    for rewards_G, values_G in zip(rewards, found, strict=True):
        for (_, number), value in zip(rewards_G, values_G, strict=True):
            if number >= 0:
                advantage_E[rows_S[number]] = value
    return torch.as_tensor(advantage_E, dtype=columns.advantage_E.dtype, device=columns.advantage_E.device)

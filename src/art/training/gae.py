"""Generalised advantage estimation: a critic's values and rewards -> advantages and returns per token.

    delta_t = r_t + gamma V_(t+1) - V_t,   A_t = delta_t + gamma lam A_(t+1),   R_t = A_t + V_t

arXiv:1506.02438. A step is a sampled token: what tools or users wrote in between takes no time, and nothing
is worth anything after the last token.

Letters: E = loss entries, those of a sequence in the order of sampling; F = the same, a sequence after the
other.
"""

from __future__ import annotations

import torch

RESIDUE = 1e-9
"""Differences from the mean below this share of the largest value are rounding: exactly zero."""
VARIANCE_EPSILON = 1e-8


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
    """1 - Var(return - value) / Var(return): 1 when the critic knows all, at most 0 when it knows nothing.

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

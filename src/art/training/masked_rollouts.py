"""Rollouts that the mismatch masks drop whole, without their votes: `Algorithm.masked` = "drop".

A mask needs the trainer's logprobs, so which rollouts it drops is known after the pass before the first
update. What their rewards and tokens were part of is then computed anew:

    rewards of the kept -> advantages of their groups -> weights of tokens, and the divisor

Letters: E = loss entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from art.batch.aggregation import trains_without_advantage, weigh
from art.batch.batch_types import LossEntries
from art.training.losses.compose import correct
from art.training.minibatches import EntryColumns
from art.wire.algorithm import Algorithm

Rewards = Sequence[Sequence[tuple[float, int]]]
"""See `TrainRequest.rewards`."""


def masked_rollouts(columns: EntryColumns, algorithm: Algorithm, logprobs_E: torch.Tensor) -> frozenset[int]:
    """The numbers of the rollouts of which the masks drop every token. `logprobs_E`: the trainer's."""
    everything = np.arange(len(logprobs_E), dtype=np.int64)
    inputs = columns.inputs(logprobs_E, everything, normalizer=1.0).with_own_logprobs()
    dropped_E = correct(algorithm.mismatch, inputs, logprobs_E, weigh=False).dropped_E
    whole_E = inputs.sequence_mean(dropped_E.to(logprobs_E.dtype)) == 1
    return frozenset(columns.sequence_E[whole_E].tolist())


def without_rollouts(rewards: Rewards, rollouts: frozenset[int]) -> list[list[tuple[float, int]]]:
    """The rewards that are left, in their groups."""
    return [[one for one in rewards_G if one[1] not in rollouts] for rewards_G in rewards]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reweighed:
    """The weights of the kept rollouts."""

    columns: EntryColumns
    entries: LossEntries
    """Weights of 0 where a rollout is in no divisor: minibatches share the normalizer by these."""
    normalizer: float


def reweigh(columns: EntryColumns, entries: LossEntries, algorithm: Algorithm, rewards: Rewards) -> Reweighed:
    """Weights and divisor as of a batch that never had the others. `rewards`: those of the kept rollouts."""
    sequence_E, advantage_E = entries.sequence_E, columns.advantage_E.cpu().numpy()
    keeps_all = algorithm.zero_advantage == "count" or trains_without_advantage(algorithm)
    moved = set(sequence_E.tolist() if keeps_all else sequence_E[advantage_E != 0].tolist())
    group_of = {number: group for group, rewards_G in enumerate(rewards) for _, number in rewards_G}
    numbers = sorted(moved & group_of.keys())
    tokens_S = np.bincount(sequence_E, minlength=1)
    weighed = weigh(
        [int(tokens_S[number]) for number in numbers],
        [group_of[number] for number in numbers],
        algorithm.aggregation,
    )
    weight_S = np.zeros(len(tokens_S))
    weight_S[numbers] = weighed.weight_S
    weight_E = weight_S[sequence_E]
    counted = torch.as_tensor(weight_E, dtype=columns.weight_E.dtype, device=columns.weight_E.device)
    return Reweighed(
        columns=replace(columns, weight_E=counted.where(counted > 0, columns.weight_E)),
        entries=replace(entries, weight_E=weight_E.astype(np.float32)),
        normalizer=weighed.normalizer,
    )

"""A KL in the reward, written out: off token by token, then returns or sums, then baseline and whitening.

Each formula here is plain Python over lists, from its paper; nothing of `art.batch.advantages` is used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pytest
import torch
from test_step import LORA, after, asked, distance, logprobs, trainer
from tiny_policies import MODEL, games, policy, qwen3

from art.batch.algorithms.combine import check_algorithm
from art.batch.batch_types import Batch
from art.errors import ConfigurationError, TokenMismatchError
from art.training.trainer import Trainer
from art.wire.algorithm import AdvantageSpec, Algorithm, KlSpec, LossSpec

BETA = 0.3
Groups = list[list[tuple[float, list[float] | None]]]
"""Of each group: a rollout's reward and the KL of its tokens, None where it is not trained."""
Found = list[list[list[float]]]
"""An advantage for each of those tokens."""


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def deviation(values: list[float]) -> float:
    return math.sqrt(sum((one - mean(values)) ** 2 for one in values) / (len(values) - 1))


def to_go(groups: Groups, gamma: float) -> Found:
    """REINFORCE++: G_t = r_t + gamma G_(t+1), r_t = [t = T] r - beta KL_t."""
    found: Found = []
    for group in groups:
        found.append([])
        for reward, costs in group:
            returns, later = [], 0.0
            for place, cost in reversed(list(enumerate(costs or []))):
                later = (reward if place == len(costs or []) - 1 else 0.0) - BETA * cost + gamma * later
                returns.insert(0, later)
            found[-1].append(returns)
    return found


def whitened(found: Found) -> Found:
    flat = [one for group in found for rollout in group for one in rollout]
    scale = math.sqrt(deviation(flat) ** 2 + 1e-8)
    return [[[(one - mean(flat)) / scale for one in rollout] for rollout in group] for group in found]


def net(group: list[tuple[float, list[float] | None]]) -> list[float]:
    """RLOO: R = r - beta sum of KL; a rollout without one costs what the others cost on average."""
    known = [sum(costs) for _, costs in group if costs is not None]
    return [reward - BETA * (mean(known) if costs is None else sum(costs)) for reward, costs in group]


def of_net(groups: Groups, advantage: Callable[[list[float]], list[float]]) -> Found:
    return [
        [[one] * len(costs or []) for one, (_, costs) in zip(advantage(net(group)), group, strict=True)]
        for group in groups
    ]


def leave_one_out(values: list[float]) -> list[float]:
    return [one - (sum(values) - one) / (len(values) - 1) for one in values]


def centered(values: list[float]) -> list[float]:
    return [one - mean(values) for one in values]


def normed(values: list[float]) -> list[float]:
    return [(one - mean(values)) / (deviation(values) + 1e-6) for one in values]


def batch_std(groups: Groups) -> Found:
    scale = deviation([one for group in groups for one in net(group)]) + 1e-6
    return of_net(groups, lambda values: [one / scale for one in centered(values)])


BY_HAND: Mapping[str, Callable[[Groups], Found]] = MappingProxyType(
    {
        "reinforce++": lambda groups: whitened(to_go(groups, 1.0)),
        "reinforce++, discounted": lambda groups: whitened(to_go(groups, 0.9)),
        "reinforce++_baseline": lambda groups: whitened(of_net(groups, centered)),
        "rloo": lambda groups: of_net(groups, leave_one_out),
        "group": lambda groups: of_net(groups, normed),
        "centered": lambda groups: of_net(groups, centered),
        "batch_std": batch_std,
        "reward": lambda groups: of_net(groups, list),
    }
)


def algorithm(name: str) -> Algorithm:
    kind, _, discount = name.partition(",")
    return Algorithm(
        advantage=AdvantageSpec(kind=kind, std="sample", gamma=0.9 if discount else 1.0),
        loss=LossSpec(name="ppo"),
        kl=KlSpec(estimator="k1", coefficient=BETA, place="reward"),
    )


def kl_to_the_base(batch: Batch) -> np.ndarray:
    base = Trainer(policy(qwen3(), dtype=torch.float64))
    base.open(MODEL, LORA, seed=1)  # its B is zero
    return (logprobs(trainer(), batch) - logprobs(base, batch)).numpy()


def written_out(batch: Batch, formula: Callable[[Groups], Found]) -> np.ndarray:
    assert batch.rewards is not None
    kl_E, sequence_E = kl_to_the_base(batch), batch.entries.sequence_E
    groups: Groups = [
        [(reward, None if number < 0 else kl_E[sequence_E == number].tolist()) for reward, number in group]
        for group in batch.rewards
    ]
    advantage_E = np.full(len(kl_E), np.nan)
    for group, values in zip(batch.rewards, formula(groups), strict=True):
        for (_, number), value in zip(group, values, strict=True):
            if number >= 0:
                advantage_E[sequence_E == number] = value
    return advantage_E


@pytest.mark.slow
@pytest.mark.parametrize("stale", [None, 1])
@pytest.mark.parametrize("name", BY_HAND)
def test_a_step_with_a_kl_in_the_reward_is_that_of_the_formula(name: str, stale: int | None) -> None:
    batch = games(13, groups=3, size=4, turns=4, stale=stale, algorithm=algorithm(name))
    assert len(np.unique(batch.entries.sequence_E)) == (12 if stale is None else 9)
    advantage_E = written_out(batch, BY_HAND[name])
    entries = dataclasses.replace(batch.entries, advantage_E=advantage_E.astype(np.float32))
    plain = algorithm(name).model_copy(update={"kl": None})
    by_hand = after(dataclasses.replace(batch, entries=entries), plain)
    for budget in (8192, 40):
        got = after(batch, algorithm(name), budget, rewards=batch.rewards)
        assert distance(got, by_hand) < 1e-5  # advantages are float32 on the wire
    shipped = after(batch, plain)
    assert distance(shipped, by_hand) > 1e-3, "the KL changes the step"


@pytest.mark.slow
def test_the_metrics_are_of_the_advantages_that_are_trained() -> None:
    batch = games(13, groups=2, size=3, algorithm=algorithm("rloo"))
    assert "loss/advantage_abs" not in batch.metrics
    got = trainer().train(batch.tree, batch.entries, asked(batch, algorithm("rloo"), rewards=batch.rewards))
    want = np.abs(written_out(batch, BY_HAND["rloo"])).mean()
    assert got["loss/advantage_abs"] == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("change", ["none", "one missing", "one twice"])
def test_rewards_that_are_not_the_rollouts_are_refused(change: str) -> None:
    batch = games(13, groups=2, size=3, algorithm=algorithm("rloo"))
    assert batch.rewards is not None
    rewards = [list(group) for group in batch.rewards]
    if change != "none":
        rewards[0][0] = rewards[0][1] if change == "one twice" else (0.5, -1)
    with pytest.raises(TokenMismatchError, match="reward of every rollout"):
        after(batch, algorithm("rloo"), rewards=None if change == "none" else rewards)


@pytest.mark.parametrize("kind", ["maxrl", "distillation"])
def test_advantages_that_cannot_take_it_are_refused(kind: str) -> None:
    teacher = {"kind": "server", "url": "http://x", "model": "m"} if kind == "distillation" else None
    made = Algorithm.model_validate(
        {
            "advantage": {"kind": kind},
            "loss": {"name": "importance_sampling"},
            "kl": {"estimator": "k1", "coefficient": 0.1, "place": "reward", "reference": "sampler"},
            "teacher": teacher,
        }
    )
    with pytest.raises(ConfigurationError, match="kl in the reward"):
        check_algorithm(made)


def test_returns_differ_from_token_to_token_so_no_sequence_ratio_goes_with_them() -> None:
    made = algorithm("reinforce++").model_copy(update={"ratio": "sequence"})
    with pytest.raises(ConfigurationError, match="differ from token to token"):
        check_algorithm(made)
    check_algorithm(algorithm("rloo").model_copy(update={"ratio": "sequence"}))

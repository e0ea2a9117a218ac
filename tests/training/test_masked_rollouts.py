"""A rollout that mismatch masks drop whole: with a vote in what the others are compared with, or without."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from test_step import after, asked, distance, logprobs, trainer
from tiny_policies import games

from art.batch.algorithms import resolve
from art.batch.algorithms.combine import check_algorithm
from art.batch.batch_types import Batch
from art.errors import ConfigurationError
from art.wire.algorithm import Algorithm

pytestmark = pytest.mark.slow
MASK = [{"kind": "geometric_mask", "low": 0.5, "high": 2.0}]
ODD = 2
"""The rollout of each group that is dropped."""


def algorithm(name: str, masked: str, **parts: Any) -> Algorithm:
    length = {"aggregation": {"kind": "constant", "length": 40}} if name == "dr_grpo" else {}
    return resolve(
        name, **{"mismatch": MASK, "masked": masked, "updates": {"minibatches": 1}, **length, **parts}
    )


def batch_of(chosen: Algorithm, *, odd: float = 0.0, **shape: Any) -> Batch:
    """Sampled by the trainer's own policy, but for the odd rollouts: the engine was off by `odd`."""
    batch = games(21, **{"groups": 3, "size": 4, "turns": 2, **shape}, algorithm=chosen)
    off_E = np.repeat(
        [odd * (one.rollout.endswith(f".{ODD}")) for one in batch.samples],
        [one.tokens for one in batch.samples],
    )
    sampled_E = (logprobs(trainer(), batch).numpy() - off_E).astype(np.float32)
    return dataclasses.replace(batch, entries=dataclasses.replace(batch.entries, logprob_E=sampled_E))


def step(batch: Batch, chosen: Algorithm, **changes: Any) -> dict[str, torch.Tensor]:
    return after(batch, chosen, **{"rewards": batch.rewards, **changes})


NAMED = ["art", "grpo", "dr_grpo", "rloo", "reinforce++"]


@pytest.mark.parametrize("name", NAMED)
def test_without_a_vote_the_step_is_that_of_a_batch_that_never_had_it(name: str) -> None:
    counting, dropping = algorithm(name, "count"), algorithm(name, "drop")
    without = step(batch_of(counting, unscored=ODD), counting)
    assert distance(step(batch_of(dropping, odd=5.0), dropping), without) < 1e-6  # advantages are float32
    assert distance(step(batch_of(counting, odd=5.0), counting), without) > 1e-3, (
        "the default is another step"
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("art", {"updates": {"minibatches": 3}}),
        ("grpo", {"aggregation": "group_mean"}),
        ("dr_grpo", {"updates": {"minibatches": 2}}),
    ],
)
def test_where_nothing_is_dropped_both_are_one(name: str, parts: dict[str, Any]) -> None:
    counting, dropping = algorithm(name, "count", **parts), algorithm(name, "drop", **parts)
    batch, anew = batch_of(counting), batch_of(dropping)
    assert batch.rewards is None and anew.rewards is not None
    assert distance(step(anew, dropping), step(batch, counting)) < 1e-6


def test_its_reward_moves_the_others_where_it_counts_and_only_there() -> None:
    found = {}
    for masked in ("count", "drop"):
        chosen = algorithm("art", masked)
        told = [batch_of(chosen, odd=5.0), batch_of(chosen, odd=5.0, add=ODD)]
        one, other = (step(batch, chosen) for batch in told)
        found[masked] = distance(one, other)
    assert found["count"] > 1e-2 and found["drop"] == 0.0


@pytest.mark.parametrize("place", ["reward", "advantage", "shaped_advantage"])
@pytest.mark.parametrize("source", ["current_learner", "sampler"])
def test_a_kl_outside_of_the_loss_goes_with_it(place: str, source: str) -> None:
    own = {"source": source} if source == "sampler" else {}
    kl = {"kl": {"estimator": "k1", "coefficient": 0.1, "place": place, **own}}
    counting, dropping = algorithm("rloo", "count", **kl), algorithm("rloo", "drop", **kl)
    without = step(batch_of(counting, unscored=ODD), counting)
    assert distance(step(batch_of(dropping, odd=5.0), dropping), without) < 1e-6


def test_where_nobody_is_left_to_compare_with_nothing_moves() -> None:
    chosen = algorithm("art", "drop")
    batch, made = batch_of(chosen, odd=5.0, size=3, groups=1, stale=1), trainer()
    told = made.train(batch.tree, batch.entries, asked(batch, chosen, rewards=[[(1.0, 0), (0.0, 1)]]))
    assert told["data/masked_rollouts"] == 1 and told["data/step_num_gradient_steps"] == 0


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"masked": "drop"}, "would not act"),
        (
            {"masked": "drop", "mismatch": [{"kind": "token_truncate", "high": 2}], "ratio_to": "trainer"},
            "no mis",
        ),
        (
            {"masked": "drop", "mismatch": MASK, "advantage": {"kind": "gae"}, "critic": {}},
            "compare no rollouts",
        ),
    ],
)
def test_where_it_would_not_act_it_is_refused(parts: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        check_algorithm(Algorithm.model_validate(parts))

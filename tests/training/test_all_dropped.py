"""A step whose mismatch masks drop every token moves nothing: no weight, no moment, no random state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny_policies import MODEL, games, policy, qwen3, randomize

from art.batch.algorithms import resolve
from art.batch.batch_types import Batch
from art.training.trainer import Trainer
from art.wire.algorithm import Algorithm
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest

NOTHING_PASSES = [{"kind": "token_mask", "low": 1e6, "high": 2e6}]
PLAIN = resolve("art")


def trainer() -> Trainer:
    made = Trainer(policy(qwen3()), token_budget=40)
    made.open(MODEL, LoraSpec(r=3, alpha=6, dropout=0.1), seed=1)
    randomize(made.parameters(MODEL))
    return made


def train(made: Trainer, batch: Batch, algorithm: Algorithm, **changes: Any) -> dict[str, float]:
    request = TrainRequest(
        model=MODEL,
        step=made.steps[MODEL],
        algorithm=algorithm,
        optimizer=OptimizerSpec(learning_rate=1e-2, weight_decay=0.1),
        normalizer=batch.normalizer,
        **changes,
    )
    return made.train(batch.tree, batch.entries, request)


def state(made: Trainer) -> list[torch.Tensor]:
    """Weights, then all that the optimizer keeps of them."""
    weights = [one.detach().clone() for one in made.parameters(MODEL).values()]
    kept = copy.deepcopy(made._open[MODEL].optimizer.state)
    return [*weights, *(value for moments in kept.values() for value in moments.values())]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"name": "grpo", "updates": {"minibatches": 2, "epochs": 2}},
        {"name": "ppo_critic"},
        {"name": "gspo", "mismatch": [{"kind": "geometric_mask", "low": 1e6, "high": 2e6}]},
    ],
)
def test_nothing_moves_and_the_next_step_is_what_it_would_have_been(parts: dict[str, Any]) -> None:
    name, rest = parts.get("name", "art"), {key: value for key, value in parts.items() if key != "name"}
    masked = resolve(name, **{"mismatch": NOTHING_PASSES, **rest})
    made, straight = trainer(), trainer()
    for one in (made, straight):
        train(one, games(1), PLAIN)
    before = state(made)
    told = train(made, games(2), masked)
    assert same(state(made), before), "neither momentum nor decay moved a weight"
    assert told["loss/mismatch_dropped"] == 1 and told["data/step_num_gradient_steps"] == 0
    assert told["loss/grad_norm"] == 0 and made.steps == {MODEL: 1}
    for one in (made, straight):  # dropout too is drawn as if nothing had been
        train(one, games(3), PLAIN)
    assert same(state(made), state(straight))


@pytest.mark.slow
def test_moments_of_another_kind_are_kept() -> None:
    made, batch = trainer(), games(1)
    train(made, batch, resolve("sft"), kind="sft")
    before = state(made)
    train(made, games(2), resolve("art", mismatch=NOTHING_PASSES))
    assert same(state(made), before)


@pytest.mark.parametrize(
    "rest",
    [
        {"mismatch": [{"kind": "token_mask", "low": 0.5, "high": 2.0}]},
        {"mismatch": NOTHING_PASSES, "kl": {"coefficient": 0.1, "reference": "sampler"}},
    ],
)
def test_what_is_left_moves_the_weights(rest: dict[str, Any]) -> None:
    """Some tokens, or a pull to a reference that no mask concerns."""
    made = trainer()
    before = state(made)
    told = train(made, games(2), resolve("art", **rest))
    assert not same(state(made), before)
    assert told["data/step_num_gradient_steps"] == 1 and made.steps == {MODEL: 1}

"""What trains where nothing is said, against the older releases' objective written out in plain torch.

    weight of a token = 1 / (trained tokens of its trajectory), divided by the mean of all weights
    loss = -sum(weight * sg(clip(p / p_sampled, 0, 5)) * A * log p) / trained tokens
    A = (r - mean of the group) / (std of the group + 1e-6)

so every trajectory counts the same, whatever its length. Of the library only the model computes it here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_policies import MODEL, VOCABULARY, accumulate_gradient, policy, qwen3, randomize

from art.batch.algorithms import resolve
from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.client.requests.train_request import algorithm_of
from art.training.trainer import Trainer
from art.wire.algorithm import Algorithm
from art.wire.training import LoraSpec

pytestmark = pytest.mark.slow

LORA = LoraSpec(r=3, alpha=6)
TURNS = ((1, 9, 2), (3,), (14, 1, 5, 6), (2, 2))
"""Sampled tokens of each turn of a group's rollouts: 12, 3, 26 and 4 tokens in one to four turns."""


def trainer() -> Trainer:
    made = Trainer(policy(qwen3(), dtype=torch.float64), token_budget=64)
    made.open(MODEL, LORA, seed=1)
    randomize(made.parameters(MODEL))
    return made


def groups(seed: int) -> list[GroupRow]:
    """Ragged conversations of one to four turns behind a shared prompt, some off the policy."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> list[int]:
        return [int(one) for one in rng.integers(0, VOCABULARY, count)]

    made = []
    for group in range(3):
        prompt, rollouts = ids(6), []
        for number, turns in enumerate(TURNS):
            context, samples = list(prompt), []
            for turn, length in enumerate(turns):
                completion = ids(length)
                samples.append(
                    SampleRow(
                        sample_id=f"{group}.{number}.{turn}",
                        prompt_ids=list(context),
                        completion_ids=completion,
                        completion_logprobs=(-4 * rng.random(length)).tolist(),
                    )
                )
                context += completion + ids(2)
            reward = float(rng.normal())
            rollouts.append(RolloutRow(rollout=f"{group}.{number}", reward=reward, samples=samples))
        made.append(GroupRow(rollouts=rollouts))
    return made


def ours(rows: list[GroupRow], algorithm: Algorithm) -> torch.Tensor:
    made = trainer()
    accumulate_gradient(made, rows, algorithm)
    return flat(made)


def flat(made: Trainer) -> torch.Tensor:
    return torch.cat([one.grad.flatten() for one in made.parameters(MODEL).values() if one.grad is not None])


def theirs(rows: list[GroupRow], weight_of: str) -> torch.Tensor:
    """The formula above, row by row through the stock model."""
    made = trainer()
    made._weights.activate(made._open[MODEL].adapter, dropout=False)
    terms, weights = [], []
    for group in rows:
        rewards = np.array([one.reward for one in group.rollouts])
        spread = np.sqrt(((rewards - rewards.mean()) ** 2).mean())
        for rollout in group.rollouts:
            advantage = (rollout.reward - rewards.mean()) / (spread + 1e-6)
            tokens = sum(len(row.completion_ids) for row in rollout.samples)
            for row in rollout.samples:
                new_N = logprobs_of(made, row)
                ratio_N = (new_N.detach() - torch.tensor(row.completion_logprobs, dtype=torch.float64)).exp()
                terms.append(-ratio_N.clamp(0, 5) * advantage * new_N)
                share = 1 / tokens if weight_of == "trajectory" else 1.0
                weights.append(torch.full((len(new_N),), share, dtype=torch.float64))
    weight_N, term_N = torch.cat(weights), torch.cat(terms)
    weight_N = weight_N / weight_N.mean()
    ((weight_N * term_N).sum() / len(term_N)).backward()
    return flat(made)


def logprobs_of(made: Trainer, row: SampleRow) -> torch.Tensor:
    ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
    logits_LV = made.policy.causal_lm(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1]
    completion_N = torch.tensor(row.completion_ids)
    return logits_LV.log_softmax(-1).gather(1, completion_N[:, None])[:, 0]


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_default_options_have_the_gradient_of_the_older_releases(seed: int) -> None:
    rows = groups(seed)
    expected = theirs(rows, "trajectory")
    assert difference(ours(rows, algorithm_of({})), expected) < 1e-6
    # What a program says when it names the older default, and what a job says that names nothing.
    assert difference(ours(rows, algorithm_of({"loss_fn": "cispo"})), expected) < 1e-6
    assert difference(ours(rows, Algorithm()), expected) < 1e-6


def test_the_mean_over_tokens_is_another_direction() -> None:
    """So that the test above can fail: `cispo` is the same formula with a weight of 1 for each token."""
    rows = groups(0)
    by_token = ours(rows, resolve("cispo"))
    assert difference(by_token, theirs(rows, "token")) < 1e-6
    cosine = torch.nn.functional.cosine_similarity(by_token, theirs(rows, "trajectory"), dim=0)
    assert float(cosine) < 0.95

"""Generalised advantages against a loop written from the formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art.training.token_advantages import explained_variance, gae, whiten


def slow_gae(
    rewards: list[float],
    values: list[float],
    sequences: list[int],
    gamma: float,
    lam: float,
    penalties: list[float],
) -> tuple[list[float], list[float]]:
    """Backwards, token by token, as in the paper; python's floats are float64."""
    advantages = [0.0] * len(values)
    for sequence in set(sequences):
        mine = [at for at, one in enumerate(sequences) if one == sequence]
        running = 0.0
        for place in reversed(range(len(mine))):
            at = mine[place]
            last = place == len(mine) - 1
            following = 0.0 if last else values[mine[place + 1]]
            reward = (rewards[at] if last else 0.0) - penalties[at]
            running = reward + gamma * following - values[at] + gamma * lam * running
            advantages[at] = running
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 90),
    sequences=st.integers(1, 7),
    gamma=st.sampled_from([1.0, 0.99, 0.5, 1e-9]),
    lam=st.sampled_from([1.0, 0.95, 0.3, 0.0]),
    penalised=st.booleans(),
)
def test_it_is_the_loop(
    seed: int, count: int, sequences: int, gamma: float, lam: float, penalised: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    sequence_E = torch.randint(sequences, (count,), generator=generator)  # interleaved on purpose
    rewards_E = torch.randn(sequences, generator=generator, dtype=torch.float64)[sequence_E]
    values_E = torch.randn(count, generator=generator, dtype=torch.float64)
    penalties_E = torch.rand(count, generator=generator, dtype=torch.float64) * penalised
    got = gae(rewards_E, values_E, sequence_E, gamma, lam, penalties_E=penalties_E if penalised else None)
    expected = slow_gae(
        rewards_E.tolist(), values_E.tolist(), sequence_E.tolist(), gamma, lam, penalties_E.tolist()
    )
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, torch.tensor(other, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_with_gamma_and_lambda_of_1_the_advantage_is_reward_minus_value() -> None:
    values_E = torch.tensor([0.25, -0.5, 2.0, 0.125])
    rewards_E, sequence_E = torch.tensor([3.0, 3.0, 3.0, -1.0]), torch.tensor([0, 0, 0, 1])
    advantages_E, returns_E = gae(rewards_E, values_E, sequence_E, 1.0, 1.0)
    assert torch.equal(advantages_E, rewards_E - values_E) and torch.equal(returns_E, rewards_E)


def test_one_lambda_of_0_looks_one_token_ahead() -> None:
    values_E = torch.tensor([0.5, 0.25], dtype=torch.float64)
    advantages_E, _ = gae(torch.ones(2), values_E, torch.zeros(2, dtype=torch.long), 0.9, 0.0)
    assert advantages_E.tolist() == pytest.approx([0.9 * 0.25 - 0.5, 1.0 - 0.25])


def test_long_sequences_in_float32_lose_nothing_to_the_sum() -> None:
    count = 5000
    generator = torch.Generator().manual_seed(0)
    values_E = torch.randn(count, generator=generator)
    sequence_E = torch.zeros(count, dtype=torch.long)
    advantages_E, returns_E = gae(torch.ones(count), values_E, sequence_E, 1.0, 0.95)
    expected, _ = slow_gae([1.0] * count, values_E.tolist(), [0] * count, 1.0, 0.95, [0.0] * count)
    assert advantages_E.dtype == returns_E.dtype == torch.float32
    torch.testing.assert_close(advantages_E, torch.tensor(expected), rtol=1e-6, atol=1e-6)


def test_no_gradient_flows() -> None:
    values_E = torch.zeros(3, requires_grad=True)
    for one in gae(torch.ones(3), values_E, torch.tensor([0, 0, 1]), 0.9, 0.9):
        assert not one.requires_grad


def test_nothing_at_all() -> None:
    empty = torch.zeros(0)
    advantages_E, returns_E = gae(empty, empty, torch.zeros(0, dtype=torch.long), 0.9, 0.9)
    assert len(advantages_E) == len(returns_E) == len(whiten(empty)) == 0
    assert explained_variance(empty, empty) is None


def test_whitened_tokens_have_mean_0_and_variance_1() -> None:
    values_E = torch.randn(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 7 + 3
    white_E = whiten(values_E)
    assert abs(float(white_E.mean())) < 1e-12 and float(white_E.var()) == pytest.approx(1.0)
    assert torch.equal(white_E.argsort(), values_E.argsort())


@pytest.mark.parametrize("values", [[0.1] * 7, [5.0], [0.0] * 3, [1e8 / 3] * 9, [0.3, 0.1 + 0.2]])
def test_equal_values_are_exactly_0_when_whitened(values: list[float]) -> None:
    assert whiten(torch.tensor(values, dtype=torch.float64)).tolist() == [0.0] * len(values)


def test_explained_variance() -> None:
    returns_E = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert explained_variance(returns_E, returns_E) == 1.0
    assert explained_variance(torch.full((4,), 0.5), returns_E) == pytest.approx(0.0)
    assert explained_variance(1 - returns_E, returns_E) == pytest.approx(-3.0)
    assert explained_variance(returns_E, torch.ones(4)) is None

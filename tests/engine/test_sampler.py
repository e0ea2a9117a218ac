"""Draws: uniform numbers that depend on seed and count alone, truncation that always leaves a token."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art.engine.builtin.sampler import SamplingTable, request_seed, sample, uniforms
from art.engine.protocol import Sampling


def test_uniform_numbers_are_uniform_and_unrelated() -> None:
    seeds = np.repeat(np.arange(100, dtype=np.uint64), 100)
    drawn = uniforms(seeds, np.tile(np.arange(100), 100))
    assert 0 <= drawn.min() and drawn.max() < 1
    shares = np.histogram(drawn, bins=10, range=(0, 1))[0] / len(drawn)
    assert np.abs(shares - 0.1).max() < 0.01
    grid = drawn.reshape(100, 100)
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.03


def test_any_integer_is_a_seed() -> None:
    for seed in (0, -1, 2**63, 2**70 + 5):
        assert 0 <= request_seed(Sampling(max_tokens=1, seed=seed)) < 2**64


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.floats(0.0, 2.0),
    st.floats(0.001, 1.0),
    st.integers(0, 12),
    st.floats(0.0, 1.0),
)
def test_a_row_is_drawn_alike_alone_and_in_company(
    seed: int, temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    table = SamplingTable(4)
    table.set(2, Sampling(max_tokens=1, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p), seed)
    table.set(1, Sampling(max_tokens=1), seed + 1)
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (4, 10)).astype(np.float32))
    count = np.zeros(4, np.int64)
    whole = sample(logits, table, np.arange(4), count)
    together, logprobs = whole.tokens, whole.logprobs
    one = sample(logits[2:3], table, np.array([2]), count[:1])
    [alone], [logprob] = one.tokens, one.logprobs
    assert together[2] == alone
    assert abs(logprobs[2] - logprob) < 1e-6 and logprob <= 0

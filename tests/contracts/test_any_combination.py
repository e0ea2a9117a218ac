"""Whatever combination is not refused has a finite loss that micro-batches add up to, cut where it may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loss_entries import COUNT, entries, inputs, of_sequences

from art.batch.algorithms import check_algorithm
from art.batch.algorithms.facts import LOSSES, needs_sequences
from art.errors import ConfigurationError
from art.training.losses.registry import make_loss
from art.wire.algorithm import Algorithm

KINDS = (
    "token_truncate",
    "sequence_truncate",
    "token_mask",
    "sequence_mask",
    "geometric_mask",
    "outlier_mask",
)
CORRECTIONS = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(KINDS), "low": st.floats(0, 0.9), "high": st.floats(1.1, 5)}
    ),
    st.fixed_dictionaries({"kind": st.just("negative_mask"), "high": st.floats(0.01, 1)}),
)
KL = st.fixed_dictionaries(
    {
        "estimator": st.sampled_from(["k1", "k2", "k3"]),
        "coefficient": st.floats(1e-3, 1),
        "importance": st.booleans(),
        "reference": st.sampled_from(["base", "sampler"]),
    }
)
COMBINATIONS = st.fixed_dictionaries(
    {
        "loss": st.sampled_from(sorted(LOSSES)).map(lambda name: {"name": name}),
        "ratio": st.sampled_from(["token", "sequence", "geometric", "average", "geometric_average"]),
        "ratio_to": st.sampled_from(["sampler", "trainer"]),
        "kl": st.none() | KL,
        "mismatch": st.lists(CORRECTIONS, max_size=2),
        "top_entropy": st.sampled_from([None, 0.5]),
        "updates": st.sampled_from([{"epochs": 1}, {"epochs": 2}]),
    }
)


def allowed(parts: dict[str, Any]) -> Algorithm | None:
    kind = "none" if parts["loss"]["name"] == "cross_entropy" else "group"
    algorithm = Algorithm.model_validate({**parts, "advantage": {"kind": kind}})
    try:
        check_algorithm(algorithm)
    except ConfigurationError:
        return None
    return algorithm


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(parts=COMBINATIONS, seed=st.integers(0, 1000), cut=st.integers(1, COUNT - 1))
def test_what_is_not_refused_adds_up(parts: dict[str, Any], seed: int, cut: int) -> None:
    algorithm = allowed(parts)
    assume(algorithm is not None)
    assert algorithm is not None
    batch = entries(seed)
    if algorithm.top_entropy is not None:
        batch["kept_E"] = torch.arange(COUNT) % 2 == 0
    loss = make_loss(algorithm)
    whole = loss(inputs(batch))
    gradient_E = torch.autograd.grad(whole.loss, batch["logprobs_E"])[0]
    assert bool(gradient_E.isfinite().all())
    if needs_sequences(algorithm):
        pieces = [of_sequences(batch, chosen) for chosen in ([0, 2, 5], [1, 3, 4, 6])]
    else:  # cut anywhere, even within a sequence
        pieces = [rows(batch, slice(0, cut)), rows(batch, slice(cut, None))]
    shares = [loss(inputs(piece)) for piece in pieces]
    assert sum(one.loss.item() for one in shares) == pytest.approx(whole.loss.item(), rel=1e-9, abs=1e-12)
    for metric, value in whole.metrics.items():
        total = sum(float(one.metrics[metric]) for one in shares)
        assert total == pytest.approx(float(value), rel=1e-9, abs=1e-12), metric


def rows(batch: dict[str, torch.Tensor], chosen: slice) -> dict[str, torch.Tensor]:
    picked = {key: value.detach()[chosen].clone() for key, value in batch.items()}
    picked["sequence_E"] = torch.unique(picked["sequence_E"], return_inverse=True)[1]
    picked["logprobs_E"].requires_grad_()
    return picked


def test_many_are_allowed_and_many_are_refused() -> None:
    """The property above is about something: a plain count over the grid without corrections."""
    grid = [
        {
            "loss": {"name": name},
            "ratio": ratio,
            "ratio_to": to,
            "kl": None,
            "mismatch": [],
            "updates": {"epochs": 2},
        }
        for name in LOSSES
        for ratio in ("token", "sequence", "geometric", "average", "geometric_average")
        for to in ("sampler", "trainer")
    ]
    passed = [allowed(parts) for parts in grid]
    # 5 losses with a ratio at 4 levels, 5 more at their one level, both denominators; cross-entropy.
    assert sum(one is not None for one in passed) == (5 * 4 + 5) * 2 + 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["cispo", "ppo", "gmpo", "vespo", "sapo"])
def test_the_order_of_the_entries_does_not_matter(name: str, seed: int) -> None:
    level = LOSSES[name].levels[-1]
    loss = make_loss(Algorithm.model_validate({"loss": {"name": name}, "ratio": level}))
    batch = entries(seed)
    order_E = torch.as_tensor(np.random.default_rng(seed).permutation(COUNT))
    shuffled = {key: value.detach()[order_E].clone() for key, value in batch.items()}
    shuffled["logprobs_E"].requires_grad_()
    gradients = []
    for parts in (batch, shuffled):
        gradients.append(torch.autograd.grad(loss(inputs(parts)).loss, parts["logprobs_E"])[0])
    assert torch.allclose(gradients[0][order_E], gradients[1], rtol=1e-12)

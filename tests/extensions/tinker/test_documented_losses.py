"""The losses of Tinker's documentation, written here with plain torch, against those that a trainer computes
of the batch: value and gradient. https://tinker-docs.thinkingmachines.ai/tinker/losses
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loss_requests import datum, read

from art.training.losses.base import LossInputs
from art.training.losses.registry import make_loss
from art_extensions.tinker.batches import LossBatch, loss_batch
from art_extensions.tinker.forward_backward import ForwardBackwardCall
from art_extensions.tinker.loss_functions import elementwise_loss

Columns = dict[str, torch.Tensor]
LENGTHS = (1, 4, 7, 12)


def cross_entropy(p: torch.Tensor, x: Columns, c: dict[str, float]) -> torch.Tensor:
    return (-p * x["weights"]).sum()


def importance_sampling(p: torch.Tensor, x: Columns, c: dict[str, float]) -> torch.Tensor:
    return -((p - x["logprobs"]).exp() * x["advantages"]).sum()


def ppo(p: torch.Tensor, x: Columns, c: dict[str, float]) -> torch.Tensor:
    return clipped((p - x["logprobs"]).exp(), x, c)


def clipped(ratio: torch.Tensor, x: Columns, c: dict[str, float]) -> torch.Tensor:
    bounded = torch.clamp(ratio, c.get("clip_low_threshold", 0.8), c.get("clip_high_threshold", 1.2))
    return -torch.min(ratio * x["advantages"], bounded * x["advantages"]).sum()


def cispo(p: torch.Tensor, x: Columns, c: dict[str, float]) -> torch.Tensor:
    ratio = (p - x["logprobs"]).exp()
    bounded = torch.clamp(ratio, c.get("clip_low_threshold", 0.8), c.get("clip_high_threshold", 1.2))
    return -(bounded.detach() * p * x["advantages"]).sum()


def dro(p: torch.Tensor, x: Columns, c: dict[str, float]) -> torch.Tensor:
    return -(p * x["advantages"] - 0.5 * c["beta"] * (p - x["logprobs"]) ** 2).sum()


def gspo(p: torch.Tensor, x: Columns, c: dict[str, float]) -> torch.Tensor:
    inside = x["sequence_ratio_mask"] != 0
    if not inside.any():
        return (p * 0).sum()
    mean = (p.detach() - x["logprobs"])[inside].mean()
    return clipped((mean + p - p.detach()).exp(), x, c)


Formula = Callable[[torch.Tensor, Columns, dict[str, float]], torch.Tensor]
CASES: list[tuple[Formula, dict[str, float]]] = [
    (cross_entropy, {}),
    (importance_sampling, {}),
    (ppo, {}),
    (ppo, {"clip_low_threshold": 0.9, "clip_high_threshold": 1.5}),
    (cispo, {}),
    (cispo, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    (dro, {"beta": 0.05}),
    (dro, {"beta": 0.7}),
    (gspo, {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    (gspo, {"clip_low_threshold": 0.9997, "clip_high_threshold": 1.0004}),
]


def random_call(loss_fn: str, config: dict[str, float], seed: int) -> ForwardBackwardCall:
    rng = np.random.default_rng(seed)
    data = []
    for length in LENGTHS:
        shape: Any = (length, 2) if loss_fn == "cross_entropy" and length == 4 else length
        mask = (rng.random(length) < 0.7).astype(np.float32)
        columns: dict[str, Any] = {"weights": rng.normal(size=shape)}
        if loss_fn != "cross_entropy":
            advantages = rng.normal(size=length) * (mask if loss_fn == "gspo" else 1)
            columns = {"logprobs": -0.1 - 2 * rng.random(length), "advantages": advantages}
        if loss_fn == "gspo":
            columns["sequence_ratio_mask"] = mask
        targets = rng.integers(0, 9, shape)
        data.append(datum(rng.integers(0, 9, length), target_tokens=targets, **columns))
    return read(*data, loss_fn=loss_fn, config=config)


def policy_logprobs(call: ForwardBackwardCall, seed: int) -> list[torch.Tensor]:
    """Near those that came, so that some ratios are clipped and others not."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for one in call.data:
        near = torch.full(one.targets.shape, -1.5, dtype=torch.float64)
        if "logprobs" in one.columns:
            near = torch.from_numpy(one.columns["logprobs"]).double()
        noise = torch.randn(near.shape, generator=generator, dtype=torch.float64)
        found.append((near + 0.3 * noise).clamp(max=-0.01).requires_grad_())
    return found


def trained(batch: LossBatch, logprobs: list[torch.Tensor]) -> torch.Tensor:
    entries = batch.entries
    sampled_E = torch.from_numpy(entries.logprob_E).double()
    inputs = LossInputs(
        logprobs_E=torch.cat([one.reshape(-1) for one in logprobs]),
        sampled_logprobs_E=sampled_E,
        proximal_logprobs_E=sampled_E,
        advantages_E=torch.from_numpy(entries.advantage_E).double(),
        weights_E=torch.from_numpy(entries.weight_E).double(),
        sequence_E=torch.from_numpy(np.unique(entries.sequence_E, return_inverse=True)[1]),
        normalizer=batch.normalizer,
    )
    return make_loss(batch.algorithm)(inputs.with_own_logprobs()).loss


@pytest.mark.parametrize(("formula", "config"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_value_and_gradient(formula: Formula, config: dict[str, float], seed: int) -> None:
    call = random_call(formula.__name__, config, seed)
    logprobs = policy_logprobs(call, seed)
    terms = [
        formula(p, {name: torch.from_numpy(one).double() for name, one in datum.columns.items()}, config)
        for p, datum in zip(logprobs, call.data, strict=True)
    ]
    for p, one, term in zip(logprobs, call.data, terms, strict=True):
        parts = elementwise_loss(call.loss_fn, config, one.columns, p.detach().numpy())
        assert parts.shape == one.targets.shape
        assert parts.sum() == pytest.approx(term.item(), abs=1e-6, rel=1e-6)
    documented = torch.stack(terms).sum()
    ours = trained(loss_batch(call), logprobs)
    assert ours.item() == pytest.approx(documented.item(), abs=1e-6, rel=1e-6)
    expected = torch.autograd.grad(documented, logprobs)
    for found, wanted in zip(torch.autograd.grad(ours, logprobs), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_a_mask_leaves_tokens_out() -> None:
    columns = {"logprobs": [-1.0, -2.0], "advantages": [1.0, 2.0]}
    call = read(datum([5, 6], target_tokens=[6, 7], **columns, mask=[0, 1]), loss_fn="importance_sampling")
    logprobs = [torch.tensor([-0.5, -1.5], dtype=torch.float64, requires_grad=True)]
    assert trained(loss_batch(call), logprobs).item() == pytest.approx(-2.0 * np.exp(0.5))
    parts = elementwise_loss(call.loss_fn, {}, call.data[0].columns, logprobs[0].detach().numpy())
    assert parts.tolist() == pytest.approx([0.0, -2.0 * np.exp(0.5)])


def test_a_token_without_weight_has_nothing_in_the_loss() -> None:
    call = read(datum([5, 6], target_tokens=[6, 7], weights=[0, 2]), datum([5], target_tokens=[6]))
    first, second = call.data
    assert elementwise_loss(call.loss_fn, {}, first.columns, np.array([-3.0, -0.5])).tolist() == [0, 1]
    assert elementwise_loss(call.loss_fn, {}, second.columns, np.array([-3.0])).tolist() == [3]

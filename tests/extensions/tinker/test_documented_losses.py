"""The losses of Tinker's documentation against those that a trainer computes of the batch: value and
derivative by each target's logprob.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from loss_formulas import CASES, Formula, dro, evaluate, random_call
from loss_requests import datum, read

from art.training.losses.base import MAX_LOG_RATIO, LossInputs
from art.training.losses.registry import make_loss
from art_extensions.tinker import loss_functions
from art_extensions.tinker.batches import LossBatch, loss_batch
from art_extensions.tinker.forward_backward import ForwardBackwardCall
from art_extensions.tinker.loss_functions import elementwise_loss


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
    terms = evaluate(formula, config, call, logprobs)
    for p, one, term in zip(logprobs, call.data, terms, strict=True):
        parts = elementwise_loss(call.loss_fn, config, one.columns, p.detach().numpy())
        assert parts.shape == one.targets.shape
        assert parts.sum() == pytest.approx(term.item(), abs=1e-12, rel=1e-12)
    documented = torch.stack(terms).sum()
    ours = trained(loss_batch(call), logprobs)
    assert ours.item() == pytest.approx(documented.item(), abs=1e-12, rel=1e-12)
    expected = torch.autograd.grad(documented, logprobs)
    for found, wanted in zip(torch.autograd.grad(ours, logprobs), expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)


FAR = [-60.0, -25.0, -20.5, 19.5, 20.5, 25.0, 60.0]
"""Log ratios."""


def far_call(loss_fn: str, config: dict[str, float]) -> tuple[ForwardBackwardCall, list[torch.Tensor]]:
    """A datum whose tokens have these log ratios, and the policy's logprobs."""
    policy = torch.tensor([min(one, 0.0) - 1.0 for one in FAR], dtype=torch.float64)
    columns: dict[str, Any] = {
        "logprobs": policy.numpy() - FAR,
        "advantages": [1.0, -0.5, 0.25, 2.0, -1.0, 0.0, 0.75],
    }
    if loss_fn == "gspo":
        columns["sequence_ratio_mask"] = [1.0] * len(FAR)
    ids = list(range(len(FAR)))
    call = read(datum(ids, target_tokens=ids, **columns), loss_fn=loss_fn, config=config)
    stored = torch.from_numpy(call.data[0].columns["logprobs"]).double()
    return call, [(stored + torch.tensor(FAR, dtype=torch.float64)).requires_grad_()]


@pytest.mark.parametrize("beta", [0.05, 0.7])
def test_dro_is_the_formula_at_any_log_ratio(beta: float) -> None:
    call, logprobs = far_call("dro", {"beta": beta})
    documented = torch.stack(evaluate(dro, {"beta": beta}, call, logprobs)).sum()
    ours = trained(loss_batch(call), logprobs)
    assert ours.item() == pytest.approx(documented.item(), rel=1e-12)
    (expected,) = torch.autograd.grad(documented, logprobs)
    (found,) = torch.autograd.grad(ours, logprobs)
    assert torch.allclose(found, expected, rtol=1e-12)
    assert bool((found[:3] < 0).all()) and bool((found[-3:] > 0).all()), "it does not pull back"
    parts = elementwise_loss("dro", {"beta": beta}, call.data[0].columns, logprobs[0].detach().numpy())
    assert parts.sum() == pytest.approx(documented.item(), rel=1e-12)


def test_dro_s_gradient_is_finite_in_float32_at_every_logprob_of_a_model() -> None:
    far = torch.tensor([-1e4, -1e-4], requires_grad=True)
    sampled = torch.tensor([-1e-4, -1e4])
    inputs = LossInputs(
        logprobs_E=far,
        sampled_logprobs_E=sampled,
        proximal_logprobs_E=sampled,
        advantages_E=torch.ones(2),
        weights_E=torch.ones(2),
        sequence_E=torch.tensor([0, 0]),
        normalizer=1.0,
    )
    (slope,) = torch.autograd.grad(
        make_loss(loss_batch(far_call("dro", {"beta": 0.5})[0]).algorithm)(inputs).loss, [far]
    )
    assert slope.tolist() == pytest.approx([-5001.0, 4999.0], rel=1e-6)


@pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo", "cispo", "gspo"])
def test_the_terms_of_far_tokens_are_those_that_are_trained(loss_fn: str) -> None:
    config = {"clip_low_threshold": 0.5, "clip_high_threshold": 1e30} if loss_fn in ("cispo", "gspo") else {}
    call, logprobs = far_call(loss_fn, config)
    ours = trained(loss_batch(call), logprobs)
    assert torch.isfinite(torch.autograd.grad(ours, logprobs, retain_graph=True)[0]).all()
    parts = elementwise_loss(loss_fn, config, call.data[0].columns, logprobs[0].detach().numpy())
    assert parts.sum() == pytest.approx(ours.item(), rel=1e-9)
    assert loss_functions.MAX_LOG_RATIO == MAX_LOG_RATIO


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

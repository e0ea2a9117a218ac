"""Every row of the table is what its paper says, and its loss runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from loss_entries import COUNT, LENGTHS, entries, inputs, on_policy
from paper_losses import BY_ALGORITHM

from art.batch.algorithms import DEFAULT, TABLE, resolve
from art.training.losses.registry import LOSSES, make_loss
from art.wire.algorithm import Algorithm, MismatchSpec, TeacherSpec

PARTS = {"teacher": TeacherSpec(kind="base"), "reward_parts": {"right": 1.0}}


def algorithm(name: str) -> Algorithm:
    return resolve(name, **{part: PARTS[part] for part in TABLE[name].needs})


@pytest.mark.parametrize("name", TABLE)
def test_its_loss_is_the_papers(name: str) -> None:
    parts = entries(seed=4, spread=1.2)
    total, at = 0.0, 0
    for length in LENGTHS:
        rows = slice(at, at + length)
        lp, old = parts["logprobs_E"][rows].tolist(), parts["proximal_logprobs_E"][rows].tolist()
        terms = BY_ALGORITHM[name](lp, old, parts["advantages_E"][at].item())
        total += sum(w * term for w, term in zip(parts["weights_E"][rows].tolist(), terms, strict=True))
        at += length
    loss = make_loss(algorithm(name))(inputs(parts)).loss
    assert loss.item() == pytest.approx(total / COUNT, rel=1e-10)
    gradient_E = torch.autograd.grad(loss, parts["logprobs_E"])[0]
    assert bool(gradient_E.isfinite().all()) and bool(gradient_E.any())


@pytest.mark.parametrize("name", [name for name in TABLE if name != "sft"])
def test_its_first_update_is_reinforce(name: str) -> None:
    """On policy, every policy loss has the gradient of the plain policy gradient."""
    parts = on_policy(entries())
    gradients = [
        torch.autograd.grad(make_loss(one)(inputs(parts)).loss, parts["logprobs_E"])[0]
        for one in (algorithm(name), resolve("reinforce"))
    ]
    assert torch.allclose(*gradients, rtol=1e-12)


@pytest.mark.parametrize("name", TABLE)
def test_all_its_parameters_are_spelled_out(name: str) -> None:
    """The row, not the loss's defaults, says what the algorithm is."""
    spec = TABLE[name].algorithm.loss
    kind = LOSSES[spec.name].params
    known = {field.name for field in dataclasses.fields(kind)}
    assert set(spec.params) | {"dual_clip", "delta"} & known == known


def test_the_default_row_is_the_default() -> None:
    default = Algorithm()
    row = resolve()
    params = dataclasses.asdict(LOSSES["cispo"].params())
    assert row.loss.params == params
    assert row == default.model_copy(update={"name": DEFAULT, "loss": row.loss})


@pytest.mark.parametrize("name", ["grpo", "gspo", "gmpo", "cispo", "vespo"])
def test_everything_at_once(name: str) -> None:
    """A row with a KL term, a correction and the trainer's ratio has a finite gradient, and all parts act."""
    kl = {"coefficient": 0.05, "estimator": "k3", "importance": True}
    mismatch = [
        MismatchSpec(kind="sequence_truncate", high=2.0),
        MismatchSpec(kind="outlier_mask", low=0.5, high=2.0),
    ]
    parts = entries()
    seen = []
    for more in ({}, {"kl": kl}, {"mismatch": mismatch}, {"kl": kl, "mismatch": mismatch}):
        one = resolve(name, ratio_to="trainer", updates={"minibatches": 2}, **more)
        output = make_loss(one)(inputs(parts))
        gradient_E = torch.autograd.grad(output.loss, parts["logprobs_E"])[0]
        assert bool(gradient_E.isfinite().all())
        seen.append(output.loss.item())
    assert len(set(seen)) == 4

"""Estimators of the divergence, against the divergence itself of small distributions."""

from __future__ import annotations

import math

import pytest
import torch
from loss_entries import COUNT, entries, inputs, on_policy

from art.errors import TrainingError
from art.training.losses.compose import kl_term
from art.training.losses.registry import make_loss
from art.wire.algorithm import Algorithm, KlSpec, LossSpec

VOCABULARY = 6
LOGITS_V = torch.tensor([0.3, -1.2, 0.8, 0.0, -0.4, 1.1], dtype=torch.float64)
REFERENCE_V = torch.tensor([-0.5, 0.2, 0.9, 0.4, -1.0, 0.3], dtype=torch.float64)
SAMPLER_V = torch.tensor([0.5, -0.2, 0.1, 0.6, -0.9, 0.2], dtype=torch.float64)


def spec(estimator: str, *, importance: bool = False, reference: str = "base") -> KlSpec:
    return KlSpec(estimator=estimator, coefficient=0.1, importance=importance, reference=reference)  # type: ignore[arg-type]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_against_its_definition(estimator: str) -> None:
    parts = entries()
    got_E = kl_term(spec(estimator), parts["logprobs_E"], parts["reference_logprobs_E"])
    for got, lp, ref in zip(
        got_E.tolist(), parts["logprobs_E"].tolist(), parts["reference_logprobs_E"].tolist(), strict=True
    ):
        want = {"k1": lp - ref, "k2": 0.5 * (lp - ref) ** 2, "k3": math.exp(ref - lp) - (ref - lp) - 1}
        assert got == pytest.approx(want[estimator], rel=1e-12)


def expected_gradient(estimator: str, *, importance: bool, sampler_V: torch.Tensor) -> torch.Tensor:
    """d / d logits of the loss, in expectation over every token that the sampler may draw."""
    logits_V = LOGITS_V.clone().requires_grad_()
    logprobs_V = torch.log_softmax(logits_V, -1)
    parts = {
        "logprobs_E": logprobs_V,
        "sampled_logprobs_E": torch.log_softmax(sampler_V, -1),
        "proximal_logprobs_E": torch.log_softmax(sampler_V, -1),
        "reference_logprobs_E": torch.log_softmax(REFERENCE_V, -1),
        "advantages_E": torch.zeros(VOCABULARY, dtype=torch.float64),
        "weights_E": torch.softmax(sampler_V, -1) * COUNT,
        "sequence_E": torch.arange(VOCABULARY),
    }
    algorithm = Algorithm(kl=spec(estimator, importance=importance), loss=LossSpec(name="reinforce"))
    make_loss(algorithm)(inputs(parts)).loss.backward()
    assert logits_V.grad is not None
    return logits_V.grad / 0.1


def true_gradient(*, reverse: bool) -> torch.Tensor:
    """Of KL(policy || reference), or of KL(reference || policy)."""
    logits_V = LOGITS_V.clone().requires_grad_()
    p_V, q_V = torch.log_softmax(logits_V, -1), torch.log_softmax(REFERENCE_V, -1)
    divergence = (q_V.exp() * (q_V - p_V)).sum() if reverse else (p_V.exp() * (p_V - q_V)).sum()
    divergence.backward()
    assert logits_V.grad is not None
    return logits_V.grad


@pytest.mark.parametrize(
    ("estimator", "importance", "sampler_V", "reverse"),
    [
        ("k2", False, LOGITS_V, False),
        ("k3", False, LOGITS_V, True),
        ("k1", True, LOGITS_V, False),
        ("k1", True, SAMPLER_V, False),
        ("k3", True, LOGITS_V, False),
        ("k3", True, SAMPLER_V, False),
    ],
)
def test_whose_gradient_it_is(
    estimator: str, importance: bool, sampler_V: torch.Tensor, reverse: bool
) -> None:
    got_V = expected_gradient(estimator, importance=importance, sampler_V=sampler_V)
    assert torch.allclose(got_V, true_gradient(reverse=reverse), atol=1e-12)


def test_k1_alone_pulls_nowhere() -> None:
    got_V = expected_gradient("k1", importance=False, sampler_V=LOGITS_V)
    assert torch.allclose(got_V, torch.zeros_like(got_V), atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator: str) -> None:
    p_V, q_V = torch.log_softmax(LOGITS_V, -1), torch.log_softmax(REFERENCE_V, -1)
    mean = (p_V.exp() * kl_term(spec(estimator), p_V, q_V)).sum()
    assert mean.item() == pytest.approx(float((p_V.exp() * (p_V - q_V)).sum()), rel=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("importance", [False, True])
def test_in_the_loss(estimator: str, importance: bool) -> None:
    """loss = policy + coefficient x kl, and the derivative is that of the sum."""
    parts = entries()
    algorithm = Algorithm(kl=spec(estimator, importance=importance), loss=LossSpec(name="ppo"))
    output = make_loss(algorithm)(inputs(parts))
    lp_E, old_E, ref_E = (
        parts[k].detach() for k in ("logprobs_E", "proximal_logprobs_E", "reference_logprobs_E")
    )
    d_E = lp_E - ref_E
    term_E = {"k1": d_E, "k2": d_E**2 / 2, "k3": (-d_E).exp() - 1 + d_E}[estimator]
    want = float((parts["weights_E"] * term_E * ((lp_E - old_E).exp() if importance else 1)).sum() / COUNT)
    assert float(output.metrics["loss/kl"]) == pytest.approx(want, rel=1e-12)
    assert output.loss.item() == pytest.approx(float(output.metrics["loss/policy"]) + 0.1 * want, rel=1e-12)

    def loss(logprobs_E: torch.Tensor) -> torch.Tensor:
        return make_loss(algorithm)(inputs({**parts, "logprobs_E": logprobs_E})).loss

    assert torch.autograd.gradcheck(loss, (parts["logprobs_E"],), eps=1e-7, atol=1e-6)


def test_a_reference_equal_to_the_policy_pulls_nowhere() -> None:
    parts = on_policy(entries())
    parts["advantages_E"] = torch.zeros(COUNT, dtype=torch.float64)
    algorithm = Algorithm(kl=spec("k3", reference="sampler"), loss=LossSpec(name="ppo"))
    output = make_loss(algorithm)(inputs(parts))
    assert output.loss.item() == 0.0
    assert not torch.autograd.grad(output.loss, parts["logprobs_E"])[0].any()


def test_the_sampler_as_reference_needs_no_other() -> None:
    parts = entries()
    del parts["reference_logprobs_E"]
    output = make_loss(Algorithm(kl=spec("k2", reference="sampler")))(inputs(parts))
    d_E = (parts["logprobs_E"] - parts["sampled_logprobs_E"]).detach()
    want = float((parts["weights_E"] * d_E**2 / 2).sum() / COUNT)
    assert float(output.metrics["loss/kl"]) == pytest.approx(want, rel=1e-12)


def test_missing_logprobs_of_the_reference_are_an_error() -> None:
    parts = entries()
    del parts["reference_logprobs_E"]
    with pytest.raises(TrainingError, match="'base'"):
        make_loss(Algorithm(kl=spec("k3")))(inputs(parts))


@pytest.mark.parametrize("place", ["reward", "advantage", "shaped_advantage"])
def test_a_kl_in_the_advantage_is_not_in_the_loss(place: str) -> None:
    parts = entries()
    kl = KlSpec(estimator="k1", coefficient=0.1, place=place)  # type: ignore[arg-type]
    with_kl, without = (make_loss(Algorithm(kl=one))(inputs(parts)) for one in (kl, None))
    assert torch.equal(with_kl.loss, without.loss) and "loss/kl" not in with_kl.metrics


def test_k3_stays_finite_far_away() -> None:
    lp_E = torch.tensor([-1e4, -1e-3], dtype=torch.float64, requires_grad=True)
    term_E = kl_term(spec("k3"), lp_E, torch.tensor([-1e-3, -1e4], dtype=torch.float64))
    assert bool(term_E.isfinite().all())
    assert bool(torch.autograd.grad(term_E.sum(), lp_E)[0].isfinite().all())

"""What every registered loss promises. A new line in the registry is tested here from then on."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from loss_entries import COUNT, LENGTHS, entries, inputs, of_sequences, on_policy
from paper_losses import BY_LOSS

from art.batch.algorithms.facts import LOSSES as FACTS
from art.errors import ConfigurationError
from art.training.losses.registry import LOSSES, Loss, make_loss
from art.wire.algorithm import Algorithm, LossSpec, RatioLevel

Parts = dict[str, torch.Tensor]
EVERY = pytest.mark.parametrize("name", sorted(LOSSES))
POLICY_LOSSES = pytest.mark.parametrize("name", sorted(set(LOSSES) - {"cross_entropy"}))
AT_EVERY_LEVEL = pytest.mark.parametrize(
    ("name", "level"), [(name, level) for name in sorted(LOSSES) for level in FACTS[name].levels]
)
CONSTANT_WEIGHT = ("cispo", "gspo_token", "vespo")
"""Their ratio is a constant of the gradient."""
PENALISED = ("dro",)
"""A penalty that asks for no advantage acts without one."""


def bound(name: str, level: RatioLevel | None = None, **params: Any) -> Loss:
    level = level or FACTS[name].levels[0]
    return make_loss(Algorithm(loss=LossSpec(name=name, params=params), ratio=level))


def loss_of(name: str, parts: Parts, level: RatioLevel | None = None, **params: Any) -> torch.Tensor:
    return bound(name, level, **params)(inputs(parts)).loss


def gradient(name: str, parts: Parts, level: RatioLevel | None = None, **params: Any) -> torch.Tensor:
    return torch.autograd.grad(loss_of(name, parts, level, **params), parts["logprobs_E"])[0]


def from_the_paper(name: str, parts: Parts) -> float:
    total, at = 0.0, 0
    for length in LENGTHS:
        rows = slice(at, at + length)
        lp, old = parts["logprobs_E"][rows].tolist(), parts["proximal_logprobs_E"][rows].tolist()
        terms = BY_LOSS[name](lp, old, parts["advantages_E"][at].item())
        total += sum(w * term for w, term in zip(parts["weights_E"][rows].tolist(), terms, strict=True))
        at += length
    return total / COUNT


@EVERY
@pytest.mark.parametrize("seed", range(3))
def test_against_the_paper(name: str, seed: int) -> None:
    parts = entries(seed, spread=1.5)
    assert loss_of(name, parts).item() == pytest.approx(from_the_paper(name, parts), rel=1e-10)


@pytest.mark.slow
@AT_EVERY_LEVEL
def test_the_gradient_is_the_derivative(name: str, level: RatioLevel) -> None:
    parts = entries(spread=0.3)

    def term(logprobs_E: torch.Tensor) -> torch.Tensor:
        return loss_of(name, {**parts, "logprobs_E": logprobs_E}, level)

    if name not in CONSTANT_WEIGHT:
        assert torch.autograd.gradcheck(term, (parts["logprobs_E"],), eps=1e-7, atol=1e-7)
        return
    # The loss is linear in log p but for the weight, which the gradient takes for a constant.
    with torch.no_grad():
        weight_E = loss_weight(name, parts, level)
    expected_E = -parts["weights_E"] * weight_E * parts["advantages_E"] / COUNT
    assert torch.allclose(gradient(name, parts, level), expected_E, rtol=1e-10)


def loss_weight(name: str, parts: Parts, level: RatioLevel) -> torch.Tensor:
    log_E = parts["logprobs_E"] - parts["proximal_logprobs_E"]
    rows = [log_E[parts["sequence_E"] == s] for s in range(len(LENGTHS))]
    if name == "vespo":
        w_E = torch.cat([row.sum().exp().expand(len(row)) for row in rows])
        good_E = parts["advantages_E"] >= 0
        return torch.where(good_E, w_E**2 * (3 * (1 - w_E)).exp(), w_E**3 * (2 * (1 - w_E)).exp())
    means_E = torch.cat([row.mean().expand(len(row)) for row in rows])
    ratio_E = {
        "token": log_E.exp(),
        "sequence": means_E.exp(),
        "average": (log_E.exp() + means_E.exp()) / 2,
        "geometric_average": (log_E.exp() * means_E.exp()).sqrt(),
    }[level]
    if name == "gspo_token":
        good_E = parts["advantages_E"] >= 0
        return means_E.exp() * torch.where(good_E, means_E.exp() <= 1.2, means_E.exp() >= 0.8)
    return ratio_E.clamp(0, 5)


@AT_EVERY_LEVEL
def test_on_policy_the_gradient_is_that_of_reinforce(name: str, level: RatioLevel) -> None:
    parts = on_policy(entries())
    if name == "cross_entropy":
        parts["advantages_E"] = torch.ones(COUNT, dtype=torch.float64)
    expected_E = -parts["weights_E"] * parts["advantages_E"] / COUNT
    assert torch.allclose(gradient(name, parts, level), expected_E, rtol=1e-12)


@POLICY_LOSSES
def test_descent_raises_what_was_good_and_lowers_what_was_bad(name: str) -> None:
    parts = entries(spread=0.05)
    moved = -gradient(name, parts) * parts["advantages_E"]
    assert bool((moved > 0).all())


@EVERY
def test_sequences_without_weight_count_nothing(name: str) -> None:
    check_silence(name, "weights_E")


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"cross_entropy", *PENALISED}))
def test_sequences_without_advantage_count_nothing(name: str) -> None:
    check_silence(name, "advantages_E")


def check_silence(name: str, silent: str) -> None:
    parts = entries()
    parts[silent] = torch.where(parts["sequence_E"] % 2 == 0, 0.0, parts[silent])
    kept = of_sequences(parts, [1, 3, 5])
    assert loss_of(name, parts).item() == pytest.approx(loss_of(name, kept).item(), rel=1e-12)
    assert not gradient(name, parts)[parts["sequence_E"] % 2 == 0].any()


@AT_EVERY_LEVEL
def test_micro_batches_add_up_to_the_batch(name: str, level: RatioLevel) -> None:
    parts = entries()
    pieces = [of_sequences(parts, chosen) for chosen in ([0, 4], [1, 2, 6], [3, 5])]
    shares = [bound(name, level)(inputs(piece)) for piece in pieces]
    whole = bound(name, level)(inputs(parts))
    assert sum(share.loss.item() for share in shares) == pytest.approx(whole.loss.item(), rel=1e-12)
    for metric, value in whole.metrics.items():
        total = float(sum(share.metrics[metric] for share in shares))
        assert total == pytest.approx(float(value), rel=1e-12), metric


@AT_EVERY_LEVEL
def test_extreme_ratios_stay_finite(name: str, level: RatioLevel) -> None:
    parts = entries()
    odd_E, third_E = torch.arange(COUNT) % 2 == 0, torch.arange(COUNT) % 3 == 0
    parts["proximal_logprobs_E"] = torch.where(odd_E, -1e4, -1e-9).double()
    parts["logprobs_E"] = torch.where(third_E, -1e4, -1e-3).double().requires_grad_()
    assert math.isfinite(loss_of(name, parts, level).item())
    assert bool(gradient(name, parts, level).isfinite().all())


@pytest.mark.parametrize("name", ["cispo", "dppo", "gmpo", "grpo", "gspo_token", "ppo"])
def test_clipping_is_counted(name: str) -> None:
    parts = entries()
    parts["weights_E"] = torch.ones(COUNT, dtype=torch.float64)
    parts["advantages_E"] = torch.ones(COUNT, dtype=torch.float64)
    parts["logprobs_E"] = torch.full((COUNT,), -0.1, dtype=torch.float64)
    parts["proximal_logprobs_E"] = parts["logprobs_E"] - 3.0  # a ratio of 20, which nobody lets pass
    assert bound(name)(inputs(parts)).metrics["loss/clipped_share"].item() == pytest.approx(1.0)
    assert bound(name)(inputs(on_policy(parts))).metrics["loss/clipped_share"].item() == 0.0


@EVERY
def test_the_table_of_facts_knows_it(name: str) -> None:
    assert FACTS[name].params == tuple(field.name for field in dataclasses.fields(LOSSES[name].params))
    assert set(FACTS) == set(LOSSES) == set(BY_LOSS)


@EVERY
def test_unknown_names_and_parameters_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Unknown loss 'grop'. Known: .*cispo.*ppo"):
        make_loss(Algorithm(loss=LossSpec(name="grop")))
    with pytest.raises(ConfigurationError, match=rf"Loss '{name}' has no parameter 'epsilo'. Known: \w"):
        bound(name, epsilo=0.2)


PARAMETERS = {
    "cispo": ("epsilon", "epsilon_high"),
    "dppo": ("low", "high"),
    "dro": ("beta",),
    "gmpo": ("epsilon", "epsilon_high"),
    "grpo": ("epsilon", "epsilon_high"),
    "gspo_token": ("epsilon", "epsilon_high"),
    "ppo": ("epsilon", "epsilon_high"),
    "sapo": ("tau", "tau_negative"),
    "vespo": ("k", "lam", "k_negative", "lam_negative"),
}
EACH_PARAMETER = pytest.mark.parametrize(
    ("name", "parameter"), [(name, one) for name, all_of in PARAMETERS.items() for one in all_of]
)


@EACH_PARAMETER
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.2", True, None])
def test_wrong_values_are_refused(name: str, parameter: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{parameter}' of loss '{name}' is .*; it is a finite"):
        bound(name, **{parameter: value})


@EACH_PARAMETER
def test_parameters_act(name: str, parameter: str) -> None:
    parts = entries(spread=2.0)
    values = {loss_of(name, parts, **{parameter: value}).item() for value in (0.1, 0.5)}
    assert len(values) == 2


@pytest.mark.parametrize("bounds", [{"dual_clip": 3.0}, {"delta": 3.0}])
def test_negative_advantages_are_bounded_on_request(bounds: dict[str, float]) -> None:
    parts = entries(spread=2.0)
    parts["advantages_E"] = -parts["advantages_E"].abs()
    terms = gradient("ppo", parts, **bounds), gradient("ppo", parts)
    ratio_E = (parts["logprobs_E"] - parts["proximal_logprobs_E"]).exp()
    assert bool((ratio_E > 3).any())
    assert not terms[0][ratio_E > 3].any() and terms[1][ratio_E > 3].all()
    assert torch.equal(terms[0][ratio_E < 3], terms[1][ratio_E < 3])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dual_clip": 3.0, "delta": 4.0}, "one bound by two names"),
        ({"dual_clip": 1.1}, r"lies above 1 \+ epsilon_high"),
        ({"delta": 1.2}, r"lies above 1 \+ epsilon_high"),
        ({"delta": True}, "a finite number of at least 0 or None"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        bound("ppo", **params)


@pytest.mark.parametrize("tau", [{"tau": 0.0}, {"tau_negative": 0}])
def test_a_gate_that_never_closes_is_refused(tau: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        bound("sapo", **tau)


def test_where_nothing_can_be_set_the_message_says_so() -> None:
    with pytest.raises(ConfigurationError, match="Known: none at all"):
        bound("reinforce", epsilon=0.2)

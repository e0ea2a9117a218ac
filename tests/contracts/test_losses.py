"""What every registered loss promises. A new line in the registry is tested here from then on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from art.errors import ConfigurationError
from art.training.losses.base import LossInputs
from art.training.losses.registry import LOSSES, Loss, make_loss
from art.wire.algorithm import Algorithm, LossSpec

pytestmark = pytest.mark.parametrize("name", sorted(LOSSES))


def entries(count: int = 40, seed: int = 0, spread: float = 0.5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logprobs_E = -3 * torch.rand(count, generator=generator, dtype=torch.float64)
    noise_E = spread * torch.randn(count, generator=generator, dtype=torch.float64)
    sampled_E = (logprobs_E + noise_E).detach()
    return {
        "logprobs_E": logprobs_E.requires_grad_(),
        "sampled_logprobs_E": sampled_E,
        "proximal_logprobs_E": sampled_E.clone(),
        "advantages_E": torch.randn(count, generator=generator, dtype=torch.float64),
        "weights_E": torch.rand(count, generator=generator, dtype=torch.float64),
        "sequence_E": torch.arange(count) // 5,
    }


def bound(name: str, **params: Any) -> Loss:
    return make_loss(Algorithm(loss=LossSpec(name=name, params=params)))


def loss_of(
    name: str, parts: dict[str, torch.Tensor], normalizer: float = 40.0, **params: Any
) -> torch.Tensor:
    return make_loss(Algorithm(loss=LossSpec(name=name, params=params)))(
        LossInputs(**parts, normalizer=normalizer)
    ).loss


def gradient(name: str, parts: dict[str, torch.Tensor], **params: Any) -> torch.Tensor:
    return torch.autograd.grad(loss_of(name, parts, **params), parts["logprobs_E"])[0]


def test_against_numpy(name: str) -> None:
    """Independent formulas; by name, so a new loss adds its own line."""
    parts = entries(spread=1.5)
    names = ("logprobs_E", "sampled_logprobs_E", "advantages_E", "weights_E")
    lp, old, a, w = (parts[key].detach().numpy() for key in names)
    ratio = np.exp(lp - old)
    references = {
        "ppo": -np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a),
        "grpo": -np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a),
        "cispo": -np.clip(ratio, 0.0, 5.0) * a * lp,
    }
    assert loss_of(name, parts).item() == pytest.approx(float((w * references[name]).sum() / 40.0), rel=1e-12)


def test_the_gradient_is_the_derivative(name: str) -> None:
    parts = entries()
    if name == "cispo":
        # Its ratio is held constant, so it is differentiated around a fixed one.
        ratio_E = (parts["logprobs_E"] - parts["proximal_logprobs_E"]).detach().exp().clamp(0, 5)
        expected = -parts["weights_E"] * ratio_E * parts["advantages_E"] / 40.0
        assert torch.allclose(gradient(name, parts), expected, rtol=1e-12)
    else:

        def function(logprobs_E: torch.Tensor) -> torch.Tensor:
            return loss_of(name, {**parts, "logprobs_E": logprobs_E})

        assert torch.autograd.gradcheck(function, (parts["logprobs_E"],), eps=1e-7, atol=1e-7)


def test_on_policy_the_gradient_is_that_of_reinforce(name: str) -> None:
    parts = entries()
    parts["proximal_logprobs_E"] = parts["logprobs_E"].detach().clone()
    expected = -parts["weights_E"] * parts["advantages_E"] / 40.0
    assert torch.allclose(gradient(name, parts), expected, rtol=1e-12)


def test_descent_raises_what_was_good_and_lowers_what_was_bad(name: str) -> None:
    parts = entries(spread=0.05)
    moved = -gradient(name, parts) * parts["advantages_E"]
    assert bool((moved > 0).all())


def test_entries_without_weight_or_advantage_count_nothing(name: str) -> None:
    parts = entries()
    for silent in ("weights_E", "advantages_E"):
        parts = entries()
        parts[silent][::2] = 0.0
        kept = {
            key: value.detach()[1::2].clone().requires_grad_(key == "logprobs_E")
            for key, value in parts.items()
        }
        assert loss_of(name, parts).item() == pytest.approx(loss_of(name, kept).item(), rel=1e-12)
        assert not gradient(name, parts)[::2].any()


def test_micro_batches_add_up_to_the_batch(name: str) -> None:
    parts = entries()
    pieces = [
        {key: value[rows] for key, value in parts.items()}
        for rows in (slice(0, 7), slice(7, 29), slice(29, 40))
    ]
    assert sum(loss_of(name, piece).item() for piece in pieces) == pytest.approx(
        loss_of(name, parts).item(), rel=1e-12
    )
    whole = bound(name)(LossInputs(**parts, normalizer=40.0)).metrics
    for metric, value in whole.items():
        shares = [bound(name)(LossInputs(**p, normalizer=40.0)).metrics[metric] for p in pieces]
        assert float(sum(shares)) == pytest.approx(float(value), rel=1e-12)


def test_extreme_ratios_stay_finite(name: str) -> None:
    parts = entries()
    parts["proximal_logprobs_E"] = torch.where(torch.arange(40) % 2 == 0, -1e4, -1e-9).double()
    parts["logprobs_E"] = torch.where(torch.arange(40) % 3 == 0, -1e4, -1e-3).double().requires_grad_()
    assert math.isfinite(loss_of(name, parts).item())
    assert bool(gradient(name, parts).isfinite().all())


def test_clipping_is_counted(name: str) -> None:
    parts = entries()
    parts["weights_E"] = torch.ones(40, dtype=torch.float64)
    parts["proximal_logprobs_E"] = parts["logprobs_E"].detach() - 3.0  # a ratio of 20
    output = bound(name)(LossInputs(**parts, normalizer=40.0))
    assert output.metrics["loss/clipped_share"].item() == 1.0


def test_unknown_names_and_parameters_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Unknown loss 'grop'. Known: .*cispo.*ppo"):
        make_loss(Algorithm(loss=LossSpec(name="grop")))
    with pytest.raises(
        ConfigurationError, match=rf"Loss '{name}' has no parameter 'epsilo'. Known: epsilon, epsilon_high"
    ):
        bound(name, epsilo=0.2)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.2", True, None])
def test_wrong_values_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match="'epsilon' of loss"):
        bound(name, epsilon=value)


def test_parameters_act(name: str) -> None:
    parts = entries(spread=2.0)
    assert loss_of(name, parts, epsilon_high=0.5).item() != loss_of(name, parts, epsilon_high=3.0).item()

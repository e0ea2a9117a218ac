"""Corrections for engine against trainer, each against plain Python over ragged sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from loss_entries import COUNT, LENGTHS, entries, inputs, of_sequences

from art.training.losses.base import LossOutput
from art.training.losses.registry import make_loss
from art.wire.algorithm import Algorithm, LossSpec, MismatchSpec

Parts = dict[str, torch.Tensor]
BANDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "token_truncate": (0.8, 1.2),
        "sequence_truncate": (0.0, 1.3),
        "token_mask": (0.7, 1.4),
        "sequence_mask": (0.5, 2.0),
        "geometric_mask": (0.9, 1.1),
        "outlier_mask": (0.6, 1.6),
        "negative_mask": (0.0, 0.02),
    }
)


def spec(kind: str) -> MismatchSpec:
    low, high = BANDS[kind]
    return MismatchSpec(kind=kind, low=low, high=high)  # type: ignore[arg-type]


def expected(kind: str, logs: list[float], advantage: float, *, weigh: bool) -> list[float]:
    """The weights of one sequence, whose log(trainer's / sampler's) are given."""
    low, high = BANDS[kind]
    tokens = [math.exp(log) for log in logs]
    product, mean = math.exp(sum(logs)), math.exp(sum(logs) / len(logs))

    def mask(value: float, weight: float) -> float:
        return (weight if weigh else 1.0) if low <= value <= high else 0.0

    return {
        "token_truncate": [min(max(w, low), high) for w in tokens],
        "sequence_truncate": [min(max(product, low), high)] * len(logs),
        "token_mask": [mask(w, w) for w in tokens],
        "sequence_mask": [mask(product, product)] * len(logs),
        "geometric_mask": [mask(mean, 1.0)] * len(logs),
        "outlier_mask": [float(all(low <= w <= high for w in tokens))] * len(logs),
        "negative_mask": [float(advantage >= 0 or -sum(logs) / len(logs) <= high)] * len(logs),
    }[kind]


def weights(kind: str, parts: Parts, trainer: str, *, weigh: bool) -> torch.Tensor:
    found: list[float] = []
    for number in range(len(LENGTHS)):
        rows = parts["sequence_E"] == number
        logs = (parts[trainer] - parts["sampled_logprobs_E"]).detach()[rows].tolist()
        found += expected(kind, logs, parts["advantages_E"][rows][0].item(), weigh=weigh)
    return torch.tensor(found, dtype=torch.float64)


def output(parts: Parts, *kinds: str, **algorithm: Any) -> LossOutput:
    algorithm = {"loss": LossSpec(name="importance_sampling"), **algorithm}
    return make_loss(Algorithm(mismatch=[spec(kind) for kind in kinds], **algorithm))(inputs(parts))


def gradient(parts: Parts, *kinds: str, **algorithm: Any) -> torch.Tensor:
    return torch.autograd.grad(output(parts, *kinds, **algorithm).loss, parts["logprobs_E"])[0]


@pytest.mark.parametrize("kind", BANDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_trainers_own_ratio_is_weighted(kind: str, seed: int) -> None:
    """Decoupled: w compares the trainer before its first update with the sampler, and is a constant."""
    parts = entries(seed)
    weight_E = weights(kind, parts, "proximal_logprobs_E", weigh=True)
    plain_E = gradient(parts)
    assert torch.allclose(gradient(parts, kind, ratio_to="trainer"), plain_E * weight_E, rtol=1e-12)
    metrics = output(parts, kind, ratio_to="trainer").metrics
    mean = float((parts["weights_E"] * weight_E).sum() / COUNT)
    assert float(metrics["loss/mismatch_weight_mean"]) == pytest.approx(mean, rel=1e-12)
    dropped = float(parts["weights_E"][weight_E == 0].sum() / COUNT)
    assert float(metrics["loss/mismatch_dropped"]) == pytest.approx(dropped, rel=1e-12)


def test_the_bands_of_these_tests_let_some_through_and_not_all() -> None:
    seen = {kind: [0, 0] for kind in BANDS}
    for seed in range(3):
        for kind in BANDS:
            weight_E = weights(kind, entries(seed), "proximal_logprobs_E", weigh=False)
            low, high = BANDS[kind]
            touched = (weight_E == 0) | ((weight_E == low) | (weight_E == high)) & kind.endswith("truncate")
            seen[kind][0] += int(touched.sum())
            seen[kind][1] += int((~touched).sum())
    assert all(some and others for some, others in seen.values()), seen


@pytest.mark.parametrize("kind", [kind for kind in BANDS if kind.endswith("_mask")])
def test_a_ratio_to_the_sampler_is_only_masked(kind: str) -> None:
    """It holds w already; the mask looks at the policy of the moment."""
    parts = entries()
    parts["proximal_logprobs_E"] = parts["sampled_logprobs_E"]
    weight_E = weights(kind, parts, "logprobs_E", weigh=False)
    assert torch.allclose(gradient(parts, kind), gradient(parts) * weight_E, rtol=1e-12)


@pytest.mark.parametrize("kind", BANDS)
def test_a_loss_without_ratio_gets_its_weight_from_here(kind: str) -> None:
    parts, reinforce = entries(), LossSpec(name="reinforce")
    weight_E = weights(kind, parts, "logprobs_E", weigh=True)
    expected_E = -parts["weights_E"] * parts["advantages_E"] * weight_E / COUNT
    assert torch.allclose(gradient(parts, kind, loss=reinforce), expected_E, rtol=1e-12)


def test_beside_a_truncation_masks_only_mask() -> None:
    parts = entries()
    kinds = ("token_truncate", "sequence_mask", "token_mask")
    weight_E = torch.ones(COUNT, dtype=torch.float64)
    for kind in kinds:
        weight_E = weight_E * weights(kind, parts, "proximal_logprobs_E", weigh=False)
    got_E = gradient(parts, *kinds, ratio_to="trainer")
    assert torch.allclose(got_E, gradient(parts) * weight_E, rtol=1e-12)


@pytest.mark.parametrize("kind", BANDS)
def test_no_mismatch_no_correction(kind: str) -> None:
    parts = entries()
    parts["sampled_logprobs_E"] = parts["proximal_logprobs_E"].clone()
    corrected = output(parts, kind, ratio_to="trainer")
    assert torch.equal(corrected.loss, output(parts).loss)
    assert float(corrected.metrics["loss/mismatch_dropped"]) == 0.0


@pytest.mark.parametrize("kind", BANDS)
def test_micro_batches_add_up(kind: str) -> None:
    parts = entries()
    whole = output(parts, kind, ratio_to="trainer")
    shares = [output(of_sequences(parts, one), kind, ratio_to="trainer") for one in ([0, 3], [1, 2, 4, 5, 6])]
    assert sum(one.loss.item() for one in shares) == pytest.approx(whole.loss.item(), rel=1e-12)
    for metric, value in whole.metrics.items():
        assert sum(float(one.metrics[metric]) for one in shares) == pytest.approx(float(value), rel=1e-12)


def test_the_kl_term_keeps_its_own_weights() -> None:
    parts = entries()
    kl = {"estimator": "k2", "coefficient": 0.5}
    corrected = output(parts, "sequence_mask", ratio_to="trainer", kl=kl)
    assert float(corrected.metrics["loss/kl"]) == float(output(parts, kl=kl).metrics["loss/kl"])

"""Random loss entries in ragged sequences, float64."""

from __future__ import annotations

from typing import Any

import torch

from art.training.losses.base import LossInputs

LENGTHS = (1, 7, 3, 12, 5, 2, 10)
COUNT = sum(LENGTHS)


def entries(seed: int = 0, spread: float = 0.5) -> dict[str, torch.Tensor]:
    """Advantage and weight are those of the sequence, as they are for most algorithms."""
    generator = torch.Generator().manual_seed(seed)

    def normal(count: int) -> torch.Tensor:
        return torch.randn(count, generator=generator, dtype=torch.float64)

    sequence_E = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    logprobs_E = -0.05 - 3 * torch.rand(COUNT, generator=generator, dtype=torch.float64)
    proximal_E = (logprobs_E + spread * normal(COUNT)).clamp(max=-0.01)
    return {
        "logprobs_E": logprobs_E.clone().requires_grad_(),
        "sampled_logprobs_E": (proximal_E + 0.3 * normal(COUNT)).clamp(max=-0.01),
        "proximal_logprobs_E": proximal_E,
        "reference_logprobs_E": (logprobs_E + 0.7 * normal(COUNT)).clamp(max=-0.01),
        "advantages_E": normal(len(LENGTHS))[sequence_E],
        "weights_E": torch.rand(len(LENGTHS), generator=generator, dtype=torch.float64)[sequence_E] + 0.1,
        "sequence_E": sequence_E,
    }


def on_policy(parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    same_E = parts["logprobs_E"].detach()
    return {**parts, "proximal_logprobs_E": same_E.clone(), "sampled_logprobs_E": same_E.clone()}


def of_sequences(parts: dict[str, torch.Tensor], chosen: list[int]) -> dict[str, torch.Tensor]:
    """The entries of some whole sequences, numbered anew, as a micro-batch has them."""
    rows_E = torch.isin(parts["sequence_E"], torch.tensor(chosen))
    picked = {key: value.detach()[rows_E].clone() for key, value in parts.items()}
    picked["sequence_E"] = torch.unique(picked["sequence_E"], return_inverse=True)[1]
    picked["logprobs_E"].requires_grad_()
    return picked


def inputs(parts: dict[str, torch.Tensor], **more: Any) -> LossInputs:
    return LossInputs(**parts, normalizer=float(COUNT), **more)

"""The losses of Tinker's documentation, written with plain torch, and requests that ask for them.
https://tinker-docs.thinkingmachines.ai/tinker/losses
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from loss_requests import datum, read

from art_extensions.tinker.forward_backward import ForwardBackwardCall

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


def evaluate(
    formula: Formula, config: dict[str, float], call: ForwardBackwardCall, logprobs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The loss of each datum, in float64. logprobs: of its targets, in their shape."""
    return [
        formula(p, {name: torch.from_numpy(one).double() for name, one in datum.columns.items()}, config)
        for p, datum in zip(logprobs, call.data, strict=True)
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

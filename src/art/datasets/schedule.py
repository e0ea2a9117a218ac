"""Learning rates of a whole training run, one a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from art.errors import ConfigurationError

Method = Literal["linear", "cosine", "constant"]

_LEFT: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "linear": lambda progress: 1 - progress,
        "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
        "constant": lambda progress: 1.0,
    }
)
"""Which part of the way from `min_lr` to the peak is left, by how far the decay is: from 0 to 1."""


def create_lr_schedule(
    total_steps: int, peak_lr: float, method: Method = "linear", warmup_steps: int = 0, min_lr: float = 0.0
) -> list[float]:
    """A linear rise over `warmup_steps`, then a decay that reaches `min_lr` at the very last step.

    The rise never starts at `min_lr` itself and ends at the peak, where the decay begins; "constant" stays
    there.

    >>> create_lr_schedule(6, 1.0, warmup_steps=2)
    [0.5, 1.0, 1.0, 0.6666666666666667, 0.33333333333333337, 0.0]

    Raises ConfigurationError (a ValueError) for an unknown method, or a negative warm-up.
    """
    if method not in _LEFT:
        raise ConfigurationError(f"Unknown method: {method}. Known: {', '.join(_LEFT)}.")
    if warmup_steps < 0:
        raise ConfigurationError(f"warmup_steps is {warmup_steps!r}; it is a number from 0 on")
    last = max(1, total_steps - warmup_steps - 1)
    rise = peak_lr - min_lr
    rates = []
    for step in range(total_steps):
        if step < warmup_steps:
            rates.append(min_lr + rise * (step + 1) / warmup_steps)
        else:
            rates.append(min_lr + rise * _LEFT[method]((step - warmup_steps) / last))
    return rates

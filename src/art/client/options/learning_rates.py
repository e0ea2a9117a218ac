"""The learning rate to begin with, and how it goes over a run: of supervised training one rate a batch, else
a share a step.

The share is a linear rise within a linear fall, with no jump where the run is given more steps. It is
recorded with the run, as legs: (the step that a leg begins at, the step that its fall ends at). A run that is
resumed with another number of steps gets a further leg, which begins at the rate that was reached and falls,
or stays, from there to the same share at the new end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from art.errors import ConfigurationError
from art.wire.records import split_bits

LORA_RATE = 3e-4
"""The learning rate of a LoRA on a pretrained model, measured on art/smollm2, for every page and command. The
defaults of `TrainConfig`, `TrainSFTConfig` and `PipelineTrainer` are those of older programs.
"""
BUILT_IN_RATES: Mapping[str, float] = MappingProxyType(
    {
        "art/nano": 2e-3,
        "art/nano-games": 2e-3,
        "art/nano-tools": 2e-3,
        "art/nano-mcp": 3e-3,
        "art/nano-words": 7e-4,
    }
)
"""The learning rates of the models that ship with ART; the card of each model says its own."""


def starting_rate(base_model: str) -> float:
    """The learning rate to begin with, of a LoRA on `base_model`.

    >>> starting_rate("art/nano-words"), starting_rate("Qwen/Qwen3-0.6B#4bit")
    (0.0007, 0.0003)
    """
    return BUILT_IN_RATES.get(split_bits(base_model)[0], LORA_RATE)


def spelled_rate(rate: float) -> str:
    """The rate as people write it.

    >>> spelled_rate(3e-4), spelled_rate(1.5e-3)
    ('3e-4', '1.5e-3')
    """
    digits, _, exponent = f"{rate:e}".partition("e")
    return f"{float(digits):g}e{int(exponent)}"


DecayMethod = Literal["linear", "cosine", "constant"]

_LEFT: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "linear": lambda progress: 1 - progress,
        "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
        "constant": lambda progress: 1.0,
    }
)
"""Which part of the way from `min_lr` to the peak is left, by how far the decay is: from 0 to 1."""


def create_lr_schedule(
    total_steps: int,
    peak_lr: float,
    method: DecayMethod = "linear",
    warmup_steps: int = 0,
    min_lr: float = 0.0,
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


Leg = tuple[int, int]


def legs_to(total: int, recorded: Sequence[Sequence[int]], *, done: int) -> tuple[Leg, ...]:
    """The legs of a run that has made `done` steps by the recorded ones, and is to have `total`.

    >>> legs_to(50, [], done=0), legs_to(50, [(0, 50)], done=20)
    (((0, 50),), ((0, 50),))
    >>> legs_to(100, [(0, 50)], done=50)
    ((0, 50), (50, 100))
    """
    legs = tuple((int(first), int(last)) for first, last in recorded)
    if not legs or not done:
        return ((0, total),)
    return legs if legs[-1][1] == total else (*legs, (done, total))


def share_at(step: int, legs: Sequence[Leg], *, warmup_steps: int, final_share: float) -> float:
    """The share of the full rate that `step` (from 0) has.

    >>> straight = [share_at(step, [(0, 4)], warmup_steps=0, final_share=0.5) for step in range(5)]
    >>> longer = [share_at(step, [(0, 4), (2, 6)], warmup_steps=0, final_share=0.5) for step in range(7)]
    >>> straight, longer
    ([1.0, 0.875, 0.75, 0.625, 0.5], [1.0, 0.875, 0.75, 0.6875, 0.625, 0.5625, 0.5])
    """
    level = 1.0
    ends = [first for first, _ in legs[1:]] + [step]
    for (first, last), end in zip(legs, ends, strict=True):
        if step < first:
            break
        passed = (min(step, end) - first) / max(1, last - first)
        level -= (level - final_share) * min(1.0, passed)
    return level * min(1.0, (step + 1) / (warmup_steps + 1))

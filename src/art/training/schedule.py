"""The learning rate of a step: a linear warm-up, then constant or falling. Pure numbers, no torch."""

from __future__ import annotations

import math

from art.wire.training import OptimizerSpec


def rate_at(spec: OptimizerSpec, step: int, rate: float) -> float:
    """The rate of the step that starts from `step` (0: the first), of a full rate of `rate`.

    The first of W warm-up steps has 1 / (W + 1) of it: a step without any would waste its rollouts. A fall
    ends just above 0 at the last of `total_steps`, and steps beyond keep that rate.

    >>> spec = OptimizerSpec(learning_rate=1.0, warmup_steps=1, schedule="linear", total_steps=5)
    >>> [rate_at(spec, step, 1.0) for step in range(6)]
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.25]
    """
    if step < spec.warmup_steps:
        return rate * (step + 1) / (spec.warmup_steps + 1)
    if spec.schedule == "constant" or spec.total_steps is None:
        return rate
    last = spec.total_steps - 1
    done = (min(step, last) - spec.warmup_steps) / (spec.total_steps - spec.warmup_steps)
    return rate * (1 - done if spec.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)

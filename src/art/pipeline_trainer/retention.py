"""Which checkpoints of a long run are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from art.errors import ConfigurationError

CHECKPOINT_CREATED_AT_METRIC = "checkpoint/created_at_unix"
CHECKPOINT_EVAL_COMPLETED_METRIC = "checkpoint/eval_completed"
CHECKPOINT_EVAL_FAILED_METRIC = "checkpoint/eval_failed"
CHECKPOINT_SAVED_METRIC = "checkpoint/saved"


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint that may be deleted. created_at: seconds since 1970, None where unknown."""

    step: int
    path: str | None = None
    created_at: float | None = None
    is_eval_step: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointRetentionContext:
    """What a strategy sees: the newest step, and the checkpoints it decides about.

    The newest checkpoint, those in use and those that wait for an evaluation are not among them.
    """

    current_step: int
    checkpoints: Sequence[CheckpointInfo]


CheckpointRetentionStrategy = Callable[[CheckpointRetentionContext], set[int]]
"""Returns the steps to keep."""


def keep_recent_and_top(
    recent: int = 5, top: int = 2, metric: str = "val/reward"
) -> CheckpointRetentionStrategy:
    """A strategy: keep the `recent` newest checkpoints and the `top` best by `metric`, the newer of equals.

    Raises ConfigurationError for negative numbers.
    """
    if recent < 0 or top < 0:
        raise ConfigurationError(f"keep_recent_and_top({recent=}, {top=}): neither may be negative")

    def keep(context: CheckpointRetentionContext) -> set[int]:
        newest = sorted((checkpoint.step for checkpoint in context.checkpoints), reverse=True)
        scored = [
            (checkpoint.metrics[metric], checkpoint.step)
            for checkpoint in context.checkpoints
            if not math.isnan(checkpoint.metrics.get(metric, math.nan))
        ]
        best = sorted(scored, reverse=True)
        return {*newest[:recent], *(step for _, step in best[:top])}

    return keep

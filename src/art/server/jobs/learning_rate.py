"""The factor of a step's learning rate: it grows with the rollouts and with the spread of their rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from art.batch.batch_types import Batch, GroupRow
from art.errors import RequestError
from art.wire.jobs import RateSpec


def rate_factor(spec: RateSpec, groups: Sequence[GroupRow], batch: Batch) -> float:
    """Returns (trained rollouts) ** power, times the mean spread of the groups' rewards if requested.

    Raises RequestError where that is 0: nothing would be trained.
    """
    factor: float = float(batch.sheet.fates["trained"].rollouts) ** spec.rollouts_power
    if spec.by_reward_std:
        factor *= reward_std(groups)
    if not (np.isfinite(factor) and factor > 0):
        raise RequestError(
            f"the learning rate would be multiplied by {factor!r} ({spec!r}); leave these options out",
            status=400,
            code="invalid_rate",
            param="rate",
        )
    return factor


def reward_std(groups: Sequence[GroupRow]) -> float:
    """The mean of the groups' population standard deviations; groups of fewer than two rewards say nothing.

    >>> from art.batch.batch_types import RolloutRow
    >>> def group(*rewards):
    ...     return GroupRow(rollouts=[RolloutRow(rollout="r", reward=one, samples=[]) for one in rewards])
    >>> reward_std([group(0.0, 1.0), group(2.0, 2.0), group(5.0), group(None, 3.0)])
    0.25
    """
    kept = [group for group in groups if not group.discarded]
    rewards = [[one.reward for one in group.rollouts if one.reward is not None] for group in kept]
    spreads = [float(np.std(one)) for one in rewards if len(one) > 1]
    return float(np.mean(spreads)) if spreads else 0.0

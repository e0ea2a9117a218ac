"""Rewards of a group -> advantages. A pure function: the trainer sees only the numbers.

`group` is GRPO (arXiv:2402.03300) with the population standard deviation, `centered` is Dr.GRPO
(arXiv:2503.20783).
Left out: leave-one-out baselines and batch-wide normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from art.errors import ConfigurationError

AdvantageKind = Literal["group", "centered"]

STD_EPSILON = 1e-6
"""Added to the standard deviation."""
RESIDUE = 1e-9
"""Differences from the mean below this share of the largest reward are rounding: exactly zero."""


def group_advantages(rewards_G: Sequence[float | None], kind: AdvantageKind = "group") -> list[float | None]:
    """The advantage of each attempt at one scenario; None where the reward is None (unscored).

    Unscored attempts take no part in mean and deviation. Equal rewards, and a group of one, give exactly 0.

    >>> group_advantages([1.0, 0.0, None], "centered")
    [0.5, -0.5, None]
    >>> [round(a, 4) for a in group_advantages([2.0, 0.0, 0.0, 2.0])]
    [1.0, -1.0, -1.0, 1.0]
    >>> group_advantages([0.1, 0.1, 0.1])
    [0.0, 0.0, 0.0]

    Raises ConfigurationError for an unknown kind and for rewards that are not finite.
    """
    if kind not in ("group", "centered"):
        raise ConfigurationError(f"Unknown advantages {kind!r}. Known: centered, group.")
    scored = [float(reward) for reward in rewards_G if reward is not None]
    for reward in scored:
        if not math.isfinite(reward):
            raise ConfigurationError(
                f"A reward is {reward!r}. Rewards are finite numbers; leave an attempt unscored with None."
            )
    if not scored:
        return [None] * len(rewards_G)
    # Residues in units of the largest reward, so that neither the sum nor the squares overflow.
    scale = max(abs(reward) for reward in scored) or 1.0
    mean = math.fsum(reward / scale for reward in scored) / len(scored)
    residues = [None if reward is None else _round(reward / scale - mean) for reward in rewards_G]
    if kind == "centered":
        return [None if residue is None else residue * scale for residue in residues]
    std = math.sqrt(math.fsum(residue * residue for residue in residues if residue is not None) / len(scored))
    return [None if residue is None else residue / (std + STD_EPSILON / scale) for residue in residues]


def _round(residue: float) -> float:
    return 0.0 if abs(residue) <= RESIDUE else residue

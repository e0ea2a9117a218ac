"""Parts of rewards -> advantages: each part is normalised in its group by itself (GDPO, arXiv 2601.05242).

    s = sum over the parts of weight x (r - mean) / (std + 1e-6)       mean and std over the group
    A = (s - mean) / (std + 1e-6)                                      mean and std over the batch

Where the parts are summed first, rollouts with different parts and one sum look alike: (1, 0) and (0, 1)
teach nothing. A rollout that lacks a part has no vote in the part's mean and adds nothing for it, as in TRL
(`multi_objective_aggregation="normalize_then_sum"`).

Letters: G = scored rollouts of a group, A = all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from art.batch.advantages import balanced, normalize
from art.errors import ConfigurationError
from art.wire.algorithm import AdvantageSpec

Parts = Mapping[str, float]


def part_advantages(
    groups: Sequence[Sequence[Parts | None]], weights: Mapping[str, float], spec: AdvantageSpec
) -> list[list[float | None]]:
    """The advantage of each rollout of each group; None where its parts are None (unscored).

    >>> group = [{"right": 1.0, "short": 0.0}, {"right": 0.0, "short": 1.0}, {"right": 0.0, "short": 0.0}]
    >>> found = part_advantages([[*group, None]], {"right": 2.0, "short": 1.0}, AdvantageSpec(kind="gdpo"))
    >>> [A if A is None else round(A, 3) for A in found[0]]
    [1.225, 0.0, -1.225, None]

    Raises ConfigurationError for a part that no rollout has.
    """
    scored = [[parts for parts in group if parts is not None] for group in groups]
    for name in weights:
        if any(scored) and not any(name in parts for scored_G in scored for parts in scored_G):
            raise ConfigurationError(
                f"No rollout has the part {name!r} of the reward: write it into "
                f"`trajectory.metrics[{name!r}]`, or leave it out of reward_parts."
            )
    sums = [_sum_of_parts(scored_G, weights, spec) for scored_G in scored]
    rest = iter(normalize(np.concatenate([np.zeros(0), *sums]), spec).tolist())
    return [
        [None if parts is None else float(balanced(next(rest), spec.balance)) for parts in group]
        for group in groups
    ]


def _sum_of_parts(scored_G: Sequence[Parts], weights: Mapping[str, float], spec: AdvantageSpec) -> np.ndarray:
    sum_G = np.zeros(len(scored_G))
    for name, weight in weights.items():
        have = [place for place, parts in enumerate(scored_G) if name in parts]
        sum_G[have] += weight * normalize(np.array([scored_G[place][name] for place in have]), spec)
    return sum_G

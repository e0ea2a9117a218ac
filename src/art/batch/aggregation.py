"""How terms of tokens become one number: a weight per token, and what their weighted sum is divided by.

    token_mean      weight 1                      divided by all tokens
    sequence_mean   weight 1 / tokens of it       divided by the number of sequences
    group_mean      weight 1 / tokens of it       divided by the number of groups
    constant        weight 1                      divided by sequences x length

A *sequence* is all that one rollout sampled. Rollouts without an advantage may count in the divisor and in
the tokens of their group while none of their tokens is forwarded: their terms are zero. The sequences of a
group of weight w count w times in the sum and in the divisor: weight 2 is the group twice.

Letters: S = sequences of the batch, trained ones and those that only count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from art.wire.algorithm import AggregationSpec, Algorithm


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """The weights of the sequences and the divisor of their sum."""

    weight_S: npt.NDArray[np.float64]
    """The weight of each token of a sequence, by sequence."""
    normalizer: float
    """At least a positive number, so that an empty batch divides by something."""


def weigh(
    tokens_S: Sequence[int],
    groups_S: Sequence[int],
    spec: AggregationSpec,
    times_S: Sequence[float] | None = None,
) -> Weighed:
    """Weight of a token of each sequence, and the divisor. `groups_S`: the group that each belongs to.
    `times_S`: the weight of that group; None: 1.

    Two sequences of 1 and 3 tokens in one group, and one of 4 in another:

    >>> def shown(kind, length=None):
    ...     weighed = weigh([1, 3, 4], [0, 0, 1], AggregationSpec(kind=kind, length=length))
    ...     return weighed.weight_S.round(3).tolist(), weighed.normalizer
    >>> shown("token_mean"), shown("sequence_mean")
    (([1.0, 1.0, 1.0], 8.0), ([1.0, 0.333, 0.25], 3.0))
    >>> shown("group_mean"), shown("constant", 10)
    (([0.25, 0.25, 0.25], 2.0), ([1.0, 1.0, 1.0], 30.0))
    """
    count_S = np.asarray(tokens_S, np.float64)
    once_S = np.ones(len(count_S)) if times_S is None else np.asarray(times_S, np.float64)
    if spec.kind == "token_mean":
        return Weighed(weight_S=once_S, normalizer=float((once_S * count_S).sum()) or 1.0)
    if spec.kind == "constant":
        return Weighed(weight_S=once_S, normalizer=(float(once_S.sum()) or 1.0) * (spec.length or 1))
    if spec.kind == "sequence_mean":
        return Weighed(weight_S=once_S / np.maximum(count_S, 1), normalizer=float(once_S.sum()) or 1.0)
    _, first_G, group_S = np.unique(np.asarray(groups_S, np.int64), return_index=True, return_inverse=True)
    tokens_of_group = np.bincount(group_S, weights=count_S) if len(group_S) else np.zeros(0)
    return Weighed(
        weight_S=once_S / np.maximum(tokens_of_group[group_S], 1),
        normalizer=float(once_S[first_G].sum()) or 1.0,
    )


def trains_without_advantage(algorithm: Algorithm) -> bool:
    """Returns whether a rollout whose reward says nothing still has a gradient: from a reference, a critic, a
    teacher or its entropy, or because rewards are not used.
    """
    return (
        algorithm.kl is not None
        or algorithm.critic is not None
        or algorithm.teacher is not None
        or algorithm.entropy is not None
        or algorithm.advantage.kind in ("gae", "distillation", "none")
    )

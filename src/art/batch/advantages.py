"""Rewards -> advantages, over the whole batch. A pure function: the trainer sees only the numbers.

    group                 (r - mean) / (std + 1e-6)          GRPO, arXiv 2402.03300
    centered              r - mean                           Dr.GRPO, arXiv 2503.20783
    batch_std             (r - mean) / (batch std + 1e-6)    LitePPO, arXiv 2508.08221
    rloo                  r - mean of the others             arXiv 2402.14740
    maxrl                 (r - mean) / (mean + 1e-6)         MaxRL, arXiv 2602.02710
    reinforce++           returns, whitened over tokens      arXiv 2501.03262
    reinforce++_baseline  r - mean, whitened over tokens     the same
    reward, none          r, and 1
    gae, distillation     r as it is: the trainer computes them, per token (turn_gae: of turns)

mean and std are those of the group; whitened over tokens: (x - mean) / sqrt(var + 1e-8) where each rollout
counts once per token that is trained.

Unscored rollouts take part in nothing. Equal rewards, rounding residues included, give exactly 0 wherever a
group's mean is taken off first and nothing follows but a division. In a group of one that mean is the reward:
its advantage is 0 (others give it its own reward); under `reward` and `reinforce++` it keeps its meaning.

A KL in the reward is known per token of what is trained. The reward of a token is then

    r_t = [t is the rollout's last] r - penalty_t

`reinforce++` takes its returns from t on, sum of gamma^(s-t) r_s over s >= t, and whitens those. All others
give one advantage to a whole rollout: the sum of its r_t stands in for r (as RLOO's paper has it, and verl
and TRL compute it). A rollout that is not trained has no KL of its own: its group's mean is taken.

Letters: G = rollouts of a group, A = all scored rollouts, X = values that are whitened (rollouts or tokens).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from art.errors import ConfigurationError
from art.wire.algorithm import OF_CRITIC, AdvantageSpec, Estimator

Array = npt.NDArray[np.float64]
Advantage = float | Array
"""One number for all tokens of a rollout, or one for each token that it sampled."""

STD_EPSILON = 1e-6
"""Added to a standard deviation or a mean that is divided by."""
VARIANCE_EPSILON = 1e-8
"""Added to the variance when whitening."""
RESIDUE = 1e-9
"""Differences from the mean below this share of the largest value are rounding: exactly zero."""
BY_TRAINER = frozenset({*OF_CRITIC, "distillation"})
"""Estimators that need what only the trainer computes."""


def advantages(
    rewards: Sequence[Sequence[float | None]],
    lengths: Sequence[Sequence[int]],
    spec: AdvantageSpec,
    penalties: Sequence[Sequence[Array | None]] | None = None,
) -> list[list[Advantage | None]]:
    """The advantage of each rollout of each group; None where the reward is None (unscored).

    `lengths`: how many tokens of each rollout are trained. `penalties`: what each of them costs, None for a
    rollout that is not trained; without it, nothing.

    >>> advantages([[1.0, 0.0, None]], [[5, 5, 5]], AdvantageSpec(kind="centered"))
    [[0.5, -0.5, None]]
    >>> advantages([[0.1, 0.1, 0.1], [3.0]], [[5, 5, 5], [5]], AdvantageSpec(kind="group"))
    [[0.0, 0.0, 0.0], [0.0]]
    >>> discounted = AdvantageSpec(kind="reinforce++", gamma=0.5)
    >>> advantages([[1.0, 0.0]], [[2, 1]], discounted)[0][0].round(3).tolist()
    [0.0, 1.225]
    >>> costs = [[np.array([0.25, 0.5]), np.array([0.0])]]
    >>> advantages([[1.0, 0.0]], [[2, 1]], AdvantageSpec(kind="centered"), costs)
    [[0.125, -0.125]]

    Raises ConfigurationError for rewards that are not finite, and for rewards that `maxrl` cannot divide by.
    """
    scored = [
        (
            _finite(rewards_G),
            np.array([n for n, r in zip(lengths_G, rewards_G, strict=True) if r is not None]),
        )
        for rewards_G, lengths_G in zip(rewards, lengths, strict=True)
    ]
    values = _estimate([r for r, _ in scored], [n for _, n in scored], spec, _of_scored(rewards, penalties))
    return [
        _in_place(rewards_G, [balanced(value, spec.balance) for value in values_G])
        for rewards_G, values_G in zip(rewards, values, strict=True)
    ]


def _of_scored(
    rewards: Sequence[Sequence[float | None]], penalties: Sequence[Sequence[Array | None]] | None
) -> list[list[Array | None]] | None:
    """Returns the values of the rollouts that have a reward."""
    if penalties is None:
        return None
    return [
        [penalty for reward, penalty in zip(rewards_G, penalties_G, strict=True) if reward is not None]
        for rewards_G, penalties_G in zip(rewards, penalties, strict=True)
    ]


def _estimate(
    rewards: Sequence[Array],
    lengths: Sequence[Array],
    spec: AdvantageSpec,
    penalties: Sequence[Sequence[Array | None]] | None,
) -> Sequence[Sequence[Advantage] | Array]:
    if penalties is None:
        return _ESTIMATORS[spec.kind](rewards, lengths, spec)
    if spec.kind == "reinforce++":
        costs = [penalty for penalties_G in penalties for penalty in penalties_G]
        return _white_returns(rewards, lengths, spec, costs)
    net = [r_G - _sums(penalties_G) for r_G, penalties_G in zip(rewards, penalties, strict=True)]
    return _ESTIMATORS[spec.kind](net, lengths, spec)


def _sums(penalties_G: Sequence[Array | None]) -> Array:
    """Returns the sum of each rollout; the mean of the others if it is unknown, so that it changes no
    baseline.
    """
    known = [math.fsum(penalty) for penalty in penalties_G if penalty is not None]
    mean = math.fsum(known) / max(1, len(known))
    rest = iter(known)
    return np.array([mean if penalty is None else next(rest) for penalty in penalties_G], np.float64)


def balanced(value: Advantage, balance: float) -> Advantage:
    """Scales advantages. Above 0: negative ones by 1 - balance. Below 0: positive ones by 1 + balance.

    >>> balanced(-2.0, 0.25), balanced(2.0, 0.25), balanced(2.0, -0.25)
    (-1.5, 2.0, 1.5)
    """
    if balance == 0:
        return value
    scaled = np.where(np.asarray(value) < 0, 1 - max(balance, 0.0), 1 + min(balance, 0.0)) * value
    return scaled if scaled.ndim else float(scaled)


def normalize(values_G: Array, spec: AdvantageSpec) -> Array:
    """Returns (value - mean) / (std + 1e-6)."""
    residue_G, scale = _scaled_residues(values_G)
    return residue_G / (_std(residue_G, spec) + STD_EPSILON / scale)


def leave_one_out(values_G: Array) -> Array:
    """Returns value - mean of the others; 0 for one alone."""
    # r - (sum - r) / (G - 1) = (r - mean) G / (G - 1)
    residue_G, scale = _scaled_residues(values_G)
    return residue_G * scale * (len(residue_G) / max(1, len(residue_G) - 1))


def _group(rewards: Sequence[Array], lengths: Sequence[Array], spec: AdvantageSpec) -> list[Array]:
    return [normalize(rewards_G, spec) for rewards_G in rewards]


def _centered(rewards: Sequence[Array], lengths: Sequence[Array], spec: AdvantageSpec) -> list[Array]:
    return [residue_G * scale for residue_G, scale in map(_scaled_residues, rewards)]


def _rloo(rewards: Sequence[Array], lengths: Sequence[Array], spec: AdvantageSpec) -> list[Array]:
    return [leave_one_out(rewards_G) for rewards_G in rewards]


def _maxrl(rewards: Sequence[Array], lengths: Sequence[Array], spec: AdvantageSpec) -> list[Array]:
    values = []
    for rewards_G in rewards:
        residue_G, scale = _scaled_residues(rewards_G)
        mean = math.fsum(rewards_G / scale) / max(1, len(rewards_G))
        if mean <= 0 and residue_G.any():
            raise ConfigurationError(
                f"'maxrl' divides by the group's mean reward, which is {mean * scale!r} for the rewards "
                f"{rewards_G.tolist()!r}; give rewards of at least 0, or choose another advantage."
            )
        values.append(residue_G / (mean + STD_EPSILON / scale) if residue_G.any() else residue_G)
    return values


def _batch_std(rewards: Sequence[Array], lengths: Sequence[Array], spec: AdvantageSpec) -> list[Array]:
    """The deviation is that of the rewards themselves, over all groups."""
    all_A, largest = _scaled_residues(np.concatenate([np.zeros(0), *rewards]))
    divisor = _std(all_A, spec) + STD_EPSILON / largest
    return [residue_G * (scale / largest) / divisor for residue_G, scale in map(_scaled_residues, rewards)]


def _reinforce(
    rewards: Sequence[Array], lengths: Sequence[Array], spec: AdvantageSpec
) -> list[Sequence[Advantage]]:
    """Returns each token's return: without a discount the reward; with one, it falls from the last
    token on.
    """
    if spec.gamma == 1:
        return _whitened(rewards, lengths, spec)
    return _white_returns(rewards, lengths, spec)


def _white_returns(
    rewards: Sequence[Array],
    lengths: Sequence[Array],
    spec: AdvantageSpec,
    penalties: Sequence[Array | None] | None = None,
) -> list[Sequence[Advantage]]:
    """Returns of tokens, `penalties` (of each rollout) taken off their rewards."""
    counts = [int(n) for lengths_G in lengths for n in lengths_G]
    all_A = np.concatenate([np.zeros(0), *rewards])
    returns = [r * spec.gamma ** np.arange(n - 1, -1, -1.0) for r, n in zip(all_A, counts, strict=True)]
    if penalties is not None:
        costs = [np.zeros(0) if penalty is None else penalty for penalty in penalties]
        returns = [r - _to_go(cost, spec.gamma) for r, cost in zip(returns, costs, strict=True)]
    flat_X = np.concatenate([np.zeros(0), *returns])
    white_X = _whiten(flat_X, np.ones(len(flat_X)), spec)
    pieces = iter(np.split(white_X, np.cumsum(counts)[:-1]) if counts else [])
    return [[next(pieces) for _ in lengths_G] for lengths_G in lengths]


def _to_go(cost_N: Array, gamma: float) -> Array:
    """sum of gamma^(s-t) cost_s over s >= t, by doubling: log2(N) passes."""
    total_N = np.array(cost_N, np.float64)
    reach, weight = 1, gamma
    while reach < len(total_N) and weight > 0:
        total_N[:-reach] += weight * total_N[reach:]
        reach, weight = 2 * reach, weight * weight
    return total_N


def _reinforce_baseline(
    rewards: Sequence[Array], lengths: Sequence[Array], spec: AdvantageSpec
) -> list[Sequence[Advantage]]:
    return _whitened(_centered(rewards, lengths, spec), lengths, spec)


def _reward(rewards: Sequence[Array], lengths: Sequence[Array], spec: AdvantageSpec) -> list[Array]:
    return list(rewards)


def _equal_advantages(rewards: Sequence[Array], lengths: Sequence[Array], spec: AdvantageSpec) -> list[Array]:
    return [np.ones(len(rewards_G)) for rewards_G in rewards]


_Estimate = Callable[[Sequence[Array], Sequence[Array], AdvantageSpec], Sequence[Sequence[Advantage] | Array]]
_ESTIMATORS: Mapping[Estimator, _Estimate] = MappingProxyType(
    {
        "group": _group,
        "centered": _centered,
        "batch_std": _batch_std,
        "rloo": _rloo,
        "maxrl": _maxrl,
        "reinforce++": _reinforce,
        "reinforce++_baseline": _reinforce_baseline,
        "reward": _reward,
        "gae": _reward,
        "distillation": _reward,
        "none": _equal_advantages,
    }
)


def _scaled_residues(rewards_G: Array) -> tuple[Array, float]:
    """Differences from the mean in units of the largest reward (no square overflows), and that unit."""
    scale = float(np.abs(rewards_G).max(initial=0.0)) or 1.0
    unit_G = rewards_G / scale
    residue_G = unit_G - math.fsum(unit_G) / max(1, len(unit_G))
    return np.where(np.abs(residue_G) <= RESIDUE, 0.0, residue_G), scale


def _std(residue_G: Array, spec: AdvantageSpec) -> float:
    """Returns the standard deviation; of one value, by either definition: 0."""
    count = len(residue_G) - (1 if spec.std == "sample" else 0)
    return math.sqrt(math.fsum(residue_G**2) / max(1, count))


def _whitened(
    values: Sequence[Array], lengths: Sequence[Array], spec: AdvantageSpec
) -> list[Sequence[Advantage]]:
    flat_A = np.concatenate([np.zeros(0), *values])
    white_A = _whiten(flat_A, np.concatenate([np.zeros(0), *lengths]), spec)
    cuts = np.cumsum([len(one) for one in values])[:-1]
    return [piece.tolist() for piece in np.split(white_A, cuts)] if values else []


def _whiten(value_X: Array, weight_X: Array, spec: AdvantageSpec) -> Array:
    scale = float(np.abs(value_X).max(initial=0.0)) or 1.0
    unit_X, total = value_X / scale, float(weight_X.sum())
    residue_X = unit_X - math.fsum(weight_X * unit_X) / max(1.0, total)
    residue_X = np.where(np.abs(residue_X) <= RESIDUE, 0.0, residue_X)
    count = total - (1 if spec.std == "sample" else 0)
    variance = math.fsum(weight_X * residue_X**2) / max(1.0, count)
    return residue_X / math.sqrt(variance + VARIANCE_EPSILON / scale / scale)


def _finite(rewards_G: Sequence[float | None]) -> Array:
    for reward in rewards_G:
        if reward is not None and not math.isfinite(reward):
            raise ConfigurationError(
                f"A reward is {reward!r}. Rewards are finite numbers; leave a rollout unscored with None."
            )
    return np.array([reward for reward in rewards_G if reward is not None], np.float64)


def _in_place(rewards_G: Sequence[float | None], values: Sequence[Advantage]) -> list[Advantage | None]:
    """The values of the scored rollouts, None where there is no reward."""
    rest = iter(values)
    found = [None if reward is None else next(rest) for reward in rewards_G]
    return [value if value is None or np.ndim(value) else float(value) for value in found]

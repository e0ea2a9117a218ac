"""Rewards of turns -> advantages of turns. A pure function, like that of whole rollouts.

A turn is one sampled reply. r_k is its reward; what turns did not earn of the rollout's reward, its last turn
earned. The return of turn k is what it and the later turns earn, G_k = sum of gamma^(j-k) r_j over j >= k.
With `credit="turn"` a reward counts for its turn alone, and r_k is in the place of G_k.

    turn_return    G_k                                                      REINFORCE with return-to-go
    turn_rloo      G_k - mean G_k of the others that reached turn k         leave-one-out, per turn
    state_rloo     G_k - mean G of the others in the same state             leave-one-out, per state
    progress       turn_rloo of r_k + gamma f_k - f_(k-1), where f_k is     potential-based shaping, Ng,
                   the value given to the state after the turn              Harada and Russell, 1999
    gigpo          (R - mean) / std + (G_k - mean) / std of the same state  GiGPO, arXiv 2505.10978
    mt_grpo        (R - mean) / std + (r_k - mean) / std of the same turn   MT-GRPO, arXiv 2505.11821
    turn_tree      mean R below the turn - mean R below the state before    tree values, SPO, arXiv 2505.23564
    turn_gae       sum of (gamma lam)^j (r_(k+j) + gamma V_(k+j+1) - V_(k+j)), GAE, arXiv 1506.02438, of turns
                   where V_k is a critic's value of the state before turn k

The first four are unbiased, and so is `turn_gae` with lam 1 whatever the critic says: what is taken off
depends on the state and on other rollouts alone. The others are not; `tests/batch/test_turn_bias.py` shows
both on three small tasks. With `credit="turn"` they are unbiased for what each turn earns at once; `progress`
is so for the episode if its values are the true ones. A state is the ids of the turn's prompt, or the name
that the environment gives it. The trainer has the values, so `turn_gae` arrives there as r_k and is computed
by `gae_of_turns`.

Where nobody else was in a state, `state_rloo` compares with the others at that turn; where nobody else came
that far, nothing is taken off.

Letters: K = turns of a rollout, G = scored rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from art.batch.advantages import leave_one_out, normalize
from art.wire.algorithm import AdvantageSpec, Estimator

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnedRollout:
    """The turns of one rollout."""

    reward: float
    """What no turn earned."""
    rewards_K: Array
    """The rewards of its turns."""
    states: Sequence[Hashable]
    """The state before each turn."""
    ends: Sequence[Hashable]
    """The state after each turn."""
    values_K: Array | None = None
    """The values given to these; None: 0."""


def turn_advantages(
    groups: Sequence[Sequence[TurnedRollout | None]], spec: AdvantageSpec
) -> list[list[Array | None]]:
    """The advantage of each turn of each rollout of each group; None where the rollout is None (unscored).

    Two rollouts that part at their second turn, of which one is rewarded:

    >>> def rollout(reward, last):
    ...     return TurnedRollout(
    ...         reward=reward, rewards_K=np.zeros(2), states=["s", "t"], ends=["t", last]
    ...     )
    >>> group = [rollout(1.0, "u"), rollout(0.0, "v"), None]
    >>> states = turn_advantages([group], AdvantageSpec(kind="state_rloo"))
    >>> [A if A is None else A.tolist() for A in states[0]]
    [[1.0, 1.0], [-1.0, -1.0], None]
    >>> tree = turn_advantages([group], AdvantageSpec(kind="turn_tree"))
    >>> [A if A is None else A.tolist() for A in tree[0]]
    [[0.0, 0.5], [0.0, -0.5], None]
    """
    estimate = ESTIMATORS[spec.kind]
    found: list[list[Array | None]] = []
    for group in groups:
        values = iter(estimate([one for one in group if one is not None], spec))
        found.append([None if one is None else next(values) for one in group])
    return found


def returns_of(rollout: TurnedRollout, spec: AdvantageSpec) -> Array:
    """Returns what each turn and, unless a reward counts for its turn alone, the later ones earn."""
    total, returns_K = 0.0, np.array(rollout.rewards_K, np.float64)
    if len(returns_K):
        returns_K[-1] += rollout.reward
    if spec.counts_later_turns:
        for k in range(len(returns_K) - 1, -1, -1):
            total = returns_K[k] = returns_K[k] + spec.gamma * total
    return returns_K


def _totals(group: Sequence[TurnedRollout]) -> Array:
    return np.array([one.reward + float(np.sum(one.rewards_K)) for one in group], np.float64)


def _turn_return(group: Sequence[TurnedRollout], spec: AdvantageSpec) -> list[Array]:
    return [returns_of(one, spec) for one in group]


def _turn_rloo(group: Sequence[TurnedRollout], spec: AdvantageSpec) -> list[Array]:
    return _at_turns([returns_of(one, spec) for one in group], leave_one_out)


def _at_turns(values: Sequence[Array], compare: Callable[[Array], Array]) -> list[Array]:
    """Compares the k-th value of each rollout with those of the others. One that came further than all others
    keeps its value, unless it is alone in its group.
    """
    found = [np.array(one, np.float64) for one in values]
    for k in range(max((len(one) for one in values), default=0)):
        places = [place for place, one in enumerate(values) if len(one) > k]
        if len(places) > 1 or len(values) == 1:
            compared = compare(np.array([values[place][k] for place in places]))
            for place, value in zip(places, compared, strict=True):
                found[place][k] = value
    return found


def _state_rloo(group: Sequence[TurnedRollout], spec: AdvantageSpec) -> list[Array]:
    returns = [returns_of(one, spec) for one in group]
    found = _at_turns(returns, leave_one_out)
    for visits in _visits(group).values():
        for place, k in visits:
            others = [returns[p][t] for p, t in visits if p != place]
            if others:
                found[place][k] = returns[place][k] - float(np.mean(others))
    return found


def _visits(group: Sequence[TurnedRollout]) -> dict[Hashable, list[tuple[int, int]]]:
    """State -> the rollouts and turns in it."""
    visits: dict[Hashable, list[tuple[int, int]]] = {}
    for place, one in enumerate(group):
        for k, state in enumerate(one.states):
            visits.setdefault(state, []).append((place, k))
    return visits


def _progress(group: Sequence[TurnedRollout], spec: AdvantageSpec) -> list[Array]:
    shaped = []
    for one in group:
        value_K = np.zeros(len(one.rewards_K)) if one.values_K is None else np.array(one.values_K)
        if len(value_K):
            value_K[-1] = 0.0  # what comes after the end has no value
        rises_K = spec.gamma * value_K - np.concatenate([[0.0], value_K])[: len(value_K)]
        shaped.append(replace(one, rewards_K=one.rewards_K + rises_K))
    return _turn_rloo(shaped, spec)


def _gigpo(group: Sequence[TurnedRollout], spec: AdvantageSpec) -> list[Array]:
    episode = normalize(_totals(group), spec)
    returns = [returns_of(one, spec) for one in group]
    found = [np.full(len(one), episode[place]) for place, one in enumerate(returns)]
    for visits in _visits(group).values():
        values = normalize(np.array([returns[place][k] for place, k in visits]), spec)
        for (place, k), value in zip(visits, values, strict=True):
            found[place][k] += value
    return found


def _mt_grpo(group: Sequence[TurnedRollout], spec: AdvantageSpec) -> list[Array]:
    episode = normalize(np.array([one.reward for one in group], np.float64), spec)
    earned = [returns_of(replace(one, reward=0.0), spec) for one in group]
    own = _at_turns(earned, lambda values: normalize(values, spec))
    return [turn_K + episode[place] for place, turn_K in enumerate(own)]


def _turn_tree(group: Sequence[TurnedRollout], spec: AdvantageSpec) -> list[Array]:
    below: dict[Hashable, list[float]] = {}
    for one, total in zip(group, _totals(group), strict=True):
        for state in {*one.states, *one.ends}:
            below.setdefault(state, []).append(float(total))
    value = {state: float(np.mean(totals)) for state, totals in below.items()}
    return [
        np.array([value[end] - value[state] for state, end in zip(one.states, one.ends, strict=True)])
        for one in group
    ]


def gae_of_turns(rewards_K: Array, values_K: Array, gamma: float, lam: float) -> Array:
    """The advantages of the turns of one rollout, of which `rewards_K` are all that it earns; nothing is
    worth anything after the last.

    >>> gae_of_turns(np.array([0.0, 1.0]), np.array([0.5, 0.25]), gamma=1.0, lam=0.0).tolist()
    [-0.25, 0.75]
    """
    following, running, found_K = 0.0, 0.0, np.zeros(len(rewards_K))
    for k in range(len(rewards_K) - 1, -1, -1):
        running = found_K[k] = rewards_K[k] + gamma * following - values_K[k] + gamma * lam * running
        following = values_K[k]
    return found_K


def _turn_rewards(group: Sequence[TurnedRollout], spec: AdvantageSpec) -> list[Array]:
    """The rewards themselves; those of the whole rollout at its last turn."""
    alone = spec.model_copy(update={"credit": "turn"})
    return [returns_of(one, alone) for one in group]


_TurnEstimate = Callable[[Sequence[TurnedRollout], AdvantageSpec], list[Array]]
ESTIMATORS: Mapping[Estimator, _TurnEstimate] = MappingProxyType(
    {
        "turn_return": _turn_return,
        "turn_rloo": _turn_rloo,
        "state_rloo": _state_rloo,
        "progress": _progress,
        "gigpo": _gigpo,
        "mt_grpo": _mt_grpo,
        "turn_tree": _turn_tree,
        "turn_gae": _turn_rewards,
    }
)
"""Those that take rewards of turns."""

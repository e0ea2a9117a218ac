"""Three tasks that are small enough to enumerate, and their exact policy gradients.

Each has a policy with a logit for every action in every state. A trajectory is a `Path` with the probability
of what the task does; `Policy.chance` has the policy's, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from art.batch.turn_advantages import TurnedRollout
from art.wire.algorithm import AdvantageSpec


@dataclass(frozen=True)
class Path:
    """One trajectory: states, actions, rewards of turns, the reward at its end."""

    states: tuple[str, ...]
    actions: tuple[int, ...]
    rewards: tuple[float, ...]
    final: float
    chance: float
    """Of what the task does; the policy's own is apart."""


def bandit_with_a_stop() -> Iterator[Path]:
    """Up to three pulls; action 0 stops. The third pull pays most."""
    for pulls in range(4):
        stops = pulls < 3
        actions = (1,) * pulls + ((0,) if stops else ())
        rewards = tuple((0.1, 0.2, 1.0)[k] for k in range(pulls)) + ((0.0,) if stops else ())
        yield Path(tuple(f"pull{k}" for k in range(len(actions))), actions, rewards, 0.0, 1.0)


def key_and_door() -> Iterator[Path]:
    """Take the key or not, walk, open the door or not: it opens with the key alone."""
    for key, walk, tries in itertools.product((0, 1), repeat=3):
        states = ("room1", f"hall-key{key}", f"door-key{key}")
        yield Path(states, (key, walk, tries), (0.0, -0.1 * walk, 0.0), float(key and tries), 1.0)


def noisy_two_steps() -> Iterator[Path]:
    """The first action pays by a coin, the second one decides in which of two states the coin left."""
    for first, coin, second in itertools.product((0, 1), repeat=3):
        chance = 0.8 if coin == first else 0.2
        states = ("start", f"side{coin}")
        yield Path(states, (first, second), (0.5 * coin, 0.0), float(second == coin) * (1 + coin), chance)


TASKS = {"bandit": bandit_with_a_stop, "key": key_and_door, "noisy": noisy_two_steps}


class Policy:
    """A softmax policy with two actions in each state, away from uniform."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.states = sorted({state for path in paths for state in path.states})
        rng = np.random.default_rng(3)
        self.logits = rng.normal(0, 0.7, (len(self.states), 2))
        self.probabilities = np.exp(self.logits) / np.exp(self.logits).sum(1, keepdims=True)

    def chance(self, path: Path) -> float:
        at = [self.states.index(state) for state in path.states]
        return path.chance * math.prod(
            self.probabilities[s, a] for s, a in zip(at, path.actions, strict=True)
        )

    def score(self, path: Path, k: int) -> np.ndarray[Any, Any]:
        """The gradient of the log-probability of turn k."""
        gradient = np.zeros_like(self.logits)
        state = self.states.index(path.states[k])
        gradient[state] = -self.probabilities[state]
        gradient[state, path.actions[k]] += 1
        return gradient


Values = Mapping[str, float]


def rollout(path: Path, values: Values) -> TurnedRollout:
    """States are those of the task; what is after a turn is the next one, or the end with what led there."""
    ends = (*path.states[1:], f"end{path.states[-1]}{path.actions[-1]}{path.final}")
    return TurnedRollout(
        reward=path.final,
        rewards_K=np.array(path.rewards),
        states=path.states,
        ends=ends,
        values_K=np.array([values.get(state, 9.0) for state in ends]),
    )


def earned(path: Path, k: int, spec: AdvantageSpec) -> float:
    """What turn k is to learn from, as one sum: r_k, or sum of gamma^(j - k) r_j over j >= k."""
    rewards = [*path.rewards[:-1], path.rewards[-1] + path.final]
    if spec.credit == "turn":
        return rewards[k]
    return math.fsum(spec.gamma ** (j - k) * rewards[j] for j in range(k, len(rewards)))


def exact_gradient(paths: Sequence[Path], policy: Policy, spec: AdvantageSpec) -> np.ndarray[Any, Any]:
    """Without discount, and with credit for the rest, the policy gradient: what was earned before a turn does
    not depend on it.
    """
    return sum(
        policy.chance(path) * earned(path, k, spec) * policy.score(path, k)
        for path in paths
        for k in range(len(path.states))
    )


def true_values(paths: Sequence[Path], policy: Policy) -> Values:
    """State -> the mean of what is earned from it on."""
    found = {}
    for state in policy.states:
        through = [(path, path.states.index(state)) for path in paths if state in path.states]
        chance = math.fsum(policy.chance(path) for path, _ in through)
        later = math.fsum(policy.chance(path) * earned(path, k, AdvantageSpec()) for path, k in through)
        found[state] = later / chance
    return found


def arbitrary_values(policy: Policy) -> Values:
    """What a critic says that knows nothing."""
    return {state: math.sin(3 * place + 1) for place, state in enumerate(policy.states)}

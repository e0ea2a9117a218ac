"""The expected gradient of each estimator of turns, by enumeration, beside the exact policy gradient.

Three small tasks, each with a policy that has a logit for every action in every state. All trajectories are
enumerated with their probabilities, then all groups of two and of three of them: what an estimator gives on
average is a sum, not a sample. An unbiased estimator equals the exact gradient to rounding.

`turn_gae` looks at one rollout at a time, and at the values of a critic: arbitrary ones, and the exact ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from art.batch.advantages import advantages
from art.batch.turn_advantages import ESTIMATORS, TurnedRollout, gae_of_turns, turn_advantages
from art.wire.algorithm import AdvantageSpec

UNBIASED = ("turn_return", "turn_rloo", "state_rloo", "progress")


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


def expected_gradient(
    paths: Sequence[Path], policy: Policy, size: int, spec: AdvantageSpec, given: Values
) -> np.ndarray[Any, Any]:
    total = np.zeros_like(policy.logits)
    for group in itertools.product(paths, repeat=size):
        chance = math.prod(policy.chance(path) for path in group)
        (values,) = turn_advantages([[rollout(path, given) for path in group]], spec)
        for path, value in zip(group, values, strict=True):
            assert value is not None
            for k, one in enumerate(value):
                total += chance / size * one * policy.score(path, k)
    return total


def bias(
    task: str, spec: AdvantageSpec, size: int, *, aim: AdvantageSpec | None = None, true: bool = False
) -> float:
    """The distance of the expected gradient from the exact one, as a share of the exact one's length.

    aim: of which the exact one is. true: the given values are the true ones, and not arbitrary.
    """
    paths = list(TASKS[task]())
    policy = Policy(paths)
    assert sum(map(policy.chance, paths)) == pytest.approx(1)
    exact = exact_gradient(paths, policy, spec if aim is None else aim)
    arbitrary = {state: math.sin(3 * place + 1) for place, state in enumerate(policy.states)}
    given = true_values(paths, policy) if true else arbitrary
    found = expected_gradient(paths, policy, size, spec, given)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", UNBIASED)
@pytest.mark.parametrize("task", TASKS)
def test_the_unbiased_are_exact(task: str, kind: Any, size: int) -> None:
    assert bias(task, AdvantageSpec(kind=kind), size) < 1e-12


@pytest.mark.parametrize("kind", UNBIASED)
@pytest.mark.parametrize("task", TASKS)
def test_with_a_discount_they_are_exact_for_what_is_discounted(task: str, kind: Any) -> None:
    spec = AdvantageSpec(kind=kind, gamma=0.7)
    assert bias(task, spec, 3) < 1e-12
    assert bias(task, spec, 3, aim=AdvantageSpec()) > 1e-3, "of the plain policy gradient they are not"


@pytest.mark.parametrize("kind", ["turn_return", "turn_rloo", "state_rloo"])
@pytest.mark.parametrize("task", TASKS)
def test_for_its_turn_alone_a_reward_is_exact_for_that_turn(task: str, kind: Any) -> None:
    spec = AdvantageSpec(kind=kind, credit="turn")
    assert bias(task, spec, 3) < 1e-12
    assert bias(task, spec, 3, aim=AdvantageSpec()) > 0.05, "what comes later is not seen"


@pytest.mark.parametrize("task", TASKS)
def test_progress_for_its_turn_alone_is_exact_with_true_values(task: str) -> None:
    spec = AdvantageSpec(kind="progress", credit="turn")
    assert bias(task, spec, 3, aim=AdvantageSpec(), true=True) < 1e-12
    assert bias(task, spec, 3, aim=AdvantageSpec()) > 0.05


def test_credit_is_the_rest_of_the_episode_unless_the_paper_has_it_otherwise() -> None:
    group = [
        TurnedRollout(reward=2.0, rewards_K=np.array([0.0, 1.0]), states="ab", ends="bc"),
        TurnedRollout(reward=0.0, rewards_K=np.array([1.0, 0.5]), states="ab", ends="bd"),
    ]
    for kind in sorted(ESTIMATORS.keys() - {"turn_tree", "turn_gae"}):
        own = "turn" if kind == "mt_grpo" else "rest"
        given: dict[str, Any] = {
            credit: turn_advantages([group], AdvantageSpec(kind=kind, credit=credit))[0]
            for credit in (None, "rest", "turn")
        }
        assert np.array_equal(given[None], given[own]), kind
        assert not np.allclose(given["rest"], given["turn"]), kind


@pytest.mark.parametrize("kind", sorted(ESTIMATORS.keys() - {*UNBIASED, "turn_gae"}))
def test_the_biased_are_not(kind: Any) -> None:
    found = {task: bias(task, AdvantageSpec(kind=kind), 3) for task in TASKS}
    assert max(found.values()) > 0.02, found


def gae_bias(task: str, values: Values, lam: float) -> float:
    """The same of `turn_gae`. values: of each state, the critic's."""
    paths = list(TASKS[task]())
    policy = Policy(paths)
    exact, found = exact_gradient(paths, policy, AdvantageSpec()), np.zeros_like(policy.logits)
    for path in paths:
        one = rollout(path, values)
        (arrived,) = turn_advantages([[one]], AdvantageSpec(kind="turn_gae"))
        assert arrived[0] is not None
        values_K = np.array([values[state] for state in path.states])
        for k, advantage in enumerate(gae_of_turns(arrived[0], values_K, 1.0, lam)):
            found += policy.chance(path) * advantage * policy.score(path, k)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def true_values_of(task: str) -> Values:
    paths = list(TASKS[task]())
    return true_values(paths, Policy(paths))


def arbitrary_values(task: str, seed: int, size: float) -> Values:
    rng = np.random.default_rng(seed)
    return {state: float(size * rng.normal()) for state in true_values_of(task)}


@pytest.mark.parametrize("size", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("task", TASKS)
def test_turn_gae_with_lam_1_is_exact_whatever_the_values(task: str, seed: int, size: float) -> None:
    assert gae_bias(task, arbitrary_values(task, seed, size), 1.0) < 1e-12


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("task", TASKS)
def test_turn_gae_with_less_needs_the_true_values(task: str, lam: float) -> None:
    """On the true ones each turn's error is what chance alone added, so that no lam is wrong."""
    assert gae_bias(task, true_values_of(task), lam) < 1e-12
    wrong = [gae_bias(task, arbitrary_values(task, seed, 10.0), lam) for seed in range(5)]
    assert min(wrong) > 0.01, wrong


def test_of_one_turn_they_are_those_of_whole_rollouts() -> None:
    rng = np.random.default_rng(0)
    rewards = [float(one) for one in rng.normal(size=7)]
    group = [
        TurnedRollout(reward=one, rewards_K=np.zeros(1), states=["s"], ends=[f"e{n}"])
        for n, one in enumerate(rewards)
    ]
    (whole,) = advantages([rewards], [[1] * 7], AdvantageSpec(kind="rloo"))
    (turns,) = turn_advantages([group], AdvantageSpec(kind="turn_rloo"))
    assert [float(one[0]) for one in turns if one is not None] == whole
    (states,) = turn_advantages([group], AdvantageSpec(kind="state_rloo"))
    assert np.allclose([one[0] for one in states if one is not None], whole, rtol=0, atol=1e-15)
    (normal,) = advantages([rewards], [[1] * 7], AdvantageSpec(kind="group"))
    (gigpo,) = turn_advantages([group], AdvantageSpec(kind="gigpo"))
    assert [float(one[0]) for one in gigpo if one is not None] == [2 * one for one in normal]


def test_a_discount_counts_turns() -> None:
    one = TurnedRollout(reward=1.0, rewards_K=np.array([0.0, 2.0, 0.0]), states="abc", ends="bcd")
    (values,) = turn_advantages([[one]], AdvantageSpec(kind="turn_return", gamma=0.5))
    assert values[0] is not None and values[0].tolist() == [1.25, 2.5, 1.0]

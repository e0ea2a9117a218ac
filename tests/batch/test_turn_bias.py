"""The expected gradient of each estimator of turns, by enumeration, beside the exact policy gradient.

Three small tasks, each with a policy that has a logit for every action in every state. All trajectories are
enumerated with their probabilities, then all groups of two and of three of them: what an estimator gives on
average is a sum, not a sample. An unbiased estimator equals the exact gradient to rounding.

`turn_gae` looks at one rollout at a time, and at the values of a critic: arbitrary ones, and the exact ones.

An algorithm is more than its advantages: a mean over tokens divides by the tokens of the batch, which depend
on what was sampled. The second half is about whole rows, as `bench.learning.bias` enumerates them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from bench.learning import bias as named
from bench.learning.small_tasks import (
    TASKS,
    Path,
    Policy,
    Values,
    arbitrary_values,
    exact_gradient,
    rollout,
    true_values,
)

from art.batch.advantages import advantages
from art.batch.algorithms import TABLE, resolve
from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.batch.turn_advantages import ESTIMATORS, TurnedRollout, gae_of_turns, turn_advantages
from art.wire.algorithm import OF_TURNS, AdvantageSpec, Algorithm

UNBIASED = ("turn_return", "turn_rloo", "state_rloo", "progress")


def expected_gradient(
    paths: Sequence[Path], policy: Policy, size: int, spec: AdvantageSpec, given: Values
) -> np.ndarray[Any, Any]:
    total = np.zeros_like(policy.logits)
    rollouts = [(path, rollout(path, given), policy.chance(path)) for path in paths]
    scores = {path: np.stack([policy.score(path, k) for k in range(len(path.states))]) for path in paths}
    for group in itertools.product(rollouts, repeat=size):
        chance = math.prod(one for _, _, one in group)
        (values,) = turn_advantages([[one for _, one, _ in group]], spec)
        for (path, _, _), value in zip(group, values, strict=True):
            assert value is not None
            total += chance / size * np.tensordot(value, scores[path], axes=1)
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
    given = true_values(paths, policy) if true else arbitrary_values(policy)
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


def drawn_values(task: str, seed: int, size: float) -> Values:
    rng = np.random.default_rng(seed)
    return {state: float(size * rng.normal()) for state in true_values_of(task)}


@pytest.mark.parametrize("size", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("task", TASKS)
def test_turn_gae_with_lam_1_is_exact_whatever_the_values(task: str, seed: int, size: float) -> None:
    assert gae_bias(task, drawn_values(task, seed, size), 1.0) < 1e-12


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("task", TASKS)
def test_turn_gae_with_less_needs_the_true_values(task: str, lam: float) -> None:
    """On the true ones each turn's error is what chance alone added, so that no lam is wrong."""
    assert gae_bias(task, true_values_of(task), lam) < 1e-12
    wrong = [gae_bias(task, drawn_values(task, seed, 10.0), lam) for seed in range(5)]
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


def rewarded_at_the_end(rewards: Sequence[float], turns: int, *, shared: bool = True) -> list[TurnedRollout]:
    """Rollouts of so many turns that share all states but what is after the last turn, or none."""
    return [
        TurnedRollout(
            reward=one,
            rewards_K=np.zeros(turns),
            states=[k if shared else (n, k) for k in range(turns)],
            ends=[*(k if shared else (n, k) for k in range(1, turns)), f"end{n}"],
        )
        for n, one in enumerate(rewards)
    ]


def of_each_turn(group: Sequence[TurnedRollout], **spec: Any) -> list[list[float]]:
    (found,) = turn_advantages([group], AdvantageSpec(**spec))
    return [one.tolist() for one in found if one is not None]


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize(
    ("kind", "whole", "shared"),
    [
        ("turn_return", "reward", True),
        ("turn_gae", "reward", True),
        ("turn_rloo", "rloo", True),
        ("state_rloo", "rloo", False),
        ("progress", "rloo", True),
        ("gigpo", "group", False),
        ("mt_grpo", "group", True),
    ],
)
def test_with_one_reward_at_the_end_they_are_those_of_whole_rollouts(
    kind: Any, whole: Any, shared: bool, turns: int
) -> None:
    """To the last digit, in every turn. `gigpo` and `state_rloo` where no two rollouts are in one state."""
    rng = np.random.default_rng(1)
    for scale in (1e-6, 1.0, 1e6):
        rewards = [float(one) for one in scale * rng.normal(size=7)]
        (wanted,) = advantages([rewards], [[turns] * 7], AdvantageSpec(kind=whole))
        found = of_each_turn(rewarded_at_the_end(rewards, turns, shared=shared), kind=kind)
        if kind == "turn_gae":  # arrives as what each turn earns; here at a critic that says 0
            found = [gae_of_turns(np.array(one), np.zeros(turns), 1.0, 1.0).tolist() for one in found]
        assert found == [[one] * turns for one in wanted]


def test_a_tree_of_one_turn_is_the_distance_from_the_mean() -> None:
    """To the last digit where the mean is exact. Of several turns, that at which rollouts part has it all."""
    rewards = [0.5, -1.25, 2.0, 0.75]
    (wanted,) = advantages([rewards], [[1] * 4], AdvantageSpec(kind="centered"))
    assert of_each_turn(rewarded_at_the_end(rewards, 1), kind="turn_tree") == [[one] for one in wanted]
    assert of_each_turn(rewarded_at_the_end(rewards, 3), kind="turn_tree") == [
        [0.0, 0.0, one] for one in wanted
    ]


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_of_one_token_a_turn_gae_is_that_of_tokens(lam: float) -> None:
    torch = pytest.importorskip("torch")
    token_advantages = pytest.importorskip("art.training.token_advantages")
    rng = np.random.default_rng(2)
    values = rng.normal(size=6)
    of_tokens, _ = token_advantages.gae(
        torch.full((6,), 1.5, dtype=torch.float64),
        torch.from_numpy(values),
        torch.zeros(6, dtype=torch.int64),
        gamma=0.9,
        lam=lam,
    )
    of_turns = gae_of_turns(np.array([0.0] * 5 + [1.5]), values, 0.9, lam)
    assert np.allclose(of_tokens.numpy(), of_turns, rtol=0, atol=1e-14)


def test_a_discount_counts_turns() -> None:
    one = TurnedRollout(reward=1.0, rewards_K=np.array([0.0, 2.0, 0.0]), states="abc", ends="bcd")
    (values,) = turn_advantages([[one]], AdvantageSpec(kind="turn_return", gamma=0.5))
    assert values[0] is not None and values[0].tolist() == [1.25, 2.5, 1.0]


MEAN_OVER_TOKENS = ("rloo", "turn_return", "turn_rloo", "state_rloo", "progress", "turn_gae")
"""Rows of unbiased advantages whose divisor is the number of the batch's tokens."""


def off(task: str, algorithm: Algorithm, size: int = 3, groups: int = 1) -> float:
    found = named.bias_of_row(task, algorithm, size, groups)
    assert found is not None
    return found.row


@pytest.mark.parametrize("name", MEAN_OVER_TOKENS)
def test_a_row_that_divides_by_its_tokens_is_off_where_lengths_differ(name: str) -> None:
    """After the best constant factor, which a learning rate is. The rollouts of `key` and `noisy` have equal
    lengths; those of the bandit have one to three turns.
    """
    row = TABLE[name].algorithm
    assert row.aggregation.kind == "token_mean"
    assert named.bias_of_row("bandit", row).advantages < 1e-12  # type: ignore[union-attr]
    assert off("key", row) < 1e-12 and off("noisy", row) < 1e-12
    small, larger = off("bandit", row), off("bandit", row, 8, 4)
    assert 0.015 < small < 0.32 and larger < small / 5
    fixed = resolve(name, aggregation={"kind": "constant", "length": 3})
    assert off("bandit", fixed) < 1e-12, "with a divisor that does not depend on what was sampled"


@pytest.mark.parametrize("name", [*named.ROWS])
def test_the_meaning_of_a_row_says_how_far_off_it_is(name: str) -> None:
    row, found = TABLE[name], [named.bias_of_row(task, TABLE[name].algorithm) for task in TASKS]
    known = [one for one in found if one is not None]
    if "nbiased" in row.meaning:
        (told,) = re.findall(r"token mean ([0-9.]+) % off", row.meaning) or ["0.0"]
        assert f"{100 * max(one.row for one in known):.1f}" == told
    else:
        assert row.meaning.endswith(" Biased.") and max(one.row for one in known) > 0.15


@pytest.mark.slow
def test_the_page_has_the_figures_of_every_row() -> None:
    page = named.PAGE.read_text(encoding="utf-8")
    assert f"<!-- bias -->\n{named.table()}\n<!-- /bias -->" in page
    assert named.said(0.0224) == "2.2 %" and named.said(None) == "refused" and named.said(1e-15) == "0"


def rollout_row(path: Path, name: str, given: Values) -> RolloutRow:
    """The same rollout as the server has it: a token a turn, and prompts that tell what led to them."""
    ids = [f"{name}.{k}" for k in range(len(path.states))]
    prompts = [[9, *(token for action in path.actions[:k] for token in (action, 7))] for k in range(len(ids))]
    samples = [
        SampleRow(sample_id=one, prompt_ids=prompt, completion_ids=[action], completion_logprobs=[-1.0])
        for one, prompt, action in zip(ids, prompts, path.actions, strict=True)
    ]
    return RolloutRow(
        rollout=name,
        reward=path.final + sum(path.rewards),
        samples=samples,
        turn_rewards=dict(zip(ids, path.rewards, strict=True)),
        turn_values=dict(zip(ids, [given[state] for state in path.states[1:]], strict=False)),
        turn_states=dict(zip(ids, path.states, strict=True)),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["art", "cispo", "grpo", "dr_grpo", "rloo", "turn_rloo", "progress", "gigpo"]
)
def test_the_enumeration_is_that_of_the_batches_that_are_trained(name: str) -> None:
    """All ordered batches of two groups of two, each built as a training step builds it."""
    paths, algorithm = list(TASKS["bandit"]()), TABLE[name].algorithm
    policy = Policy(paths)
    given = arbitrary_values(policy)
    total = np.zeros_like(policy.logits)
    for drawn in itertools.product(paths, repeat=4):
        rows = [rollout_row(path, str(n), given) for n, path in enumerate(drawn)]
        if algorithm.advantage.kind not in OF_TURNS:
            rows = [dataclasses.replace(one, turn_rewards={}) for one in rows]
        batch = build_batch([GroupRow(rollouts=rows[:2]), GroupRow(rollouts=rows[2:])], algorithm=algorithm)
        fates = [one.fate for fates_G in batch.fates for one in fates_G]
        trained = [path for path, fate in zip(drawn, fates, strict=True) if fate == "trained"]
        scores = [policy.score(path, k) for path in trained for k in range(len(path.states))]
        weights = batch.entries.advantage_E.astype(float) * batch.entries.weight_E / batch.normalizer
        chance = math.prod(policy.chance(path) for path in drawn)
        for weight, score in zip(weights, scores, strict=True):
            total += chance * weight * score
    enumerated = named.expected_step(list(named.enumerated_groups("bandit", algorithm, 2)), 2)
    assert np.allclose(total, enumerated, rtol=1e-6, atol=1e-7)

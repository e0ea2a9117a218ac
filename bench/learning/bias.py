"""How far the expected gradient of each named algorithm is from the policy gradient, by enumeration.

    python -m bench.learning.bias

On the three tasks of `small_tasks`, with one token a turn, all groups are enumerated with their
probabilities, so a figure is a sum and not a sample. The table is written into docs/reference/algorithms.md.
Two distances, both as a share of the length of the policy gradient:

    the advantages alone    each turn's score times its advantage, divided by the number of rollouts
    the row                 as it trains: weighed by the row's own mean; after the best constant factor, for
                            a learning rate is one

The ratio of probabilities is 1, as in the first update on new samples. Rows with a value of every token, a
teacher or given answers are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from art.batch.advantages import advantages
from art.batch.aggregation import weigh
from art.batch.algorithms import TABLE
from art.batch.part_advantages import part_advantages
from art.batch.turn_advantages import gae_of_turns, turn_advantages
from art.errors import ConfigurationError
from art.wire.algorithm import OF_TURNS, AdvantageSpec, Algorithm
from bench.learning.small_tasks import (
    TASKS,
    Path,
    Policy,
    Values,
    arbitrary_values,
    exact_gradient,
    rollout,
)
from bench.marked_pages import replace_between_marks

PAGE = FilePath(__file__).parents[2] / "docs" / "reference" / "algorithms.md"
ROWS = tuple(
    name for name, row in TABLE.items() if row.algorithm.advantage.kind not in ("gae", "distillation", "none")
)
SIZE = 3
"""Rollouts of the one group of a batch, unless said."""
LARGER = (4, 8)
"""Groups, and rollouts of each, of the larger batch."""
EXACT = 1e-12
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class EnumeratedGroup:
    """One of all groups that can be sampled, in any order, and what a row makes of it."""

    chance: float
    alone: Array
    """The sum of scores times advantages, divided by the number of rollouts."""
    weighed: Array
    """The sum of scores times advantages, weighed by the row's mean."""
    divisor: float
    """What it adds to the divisor of its batch."""


def advantages_of(
    paths: Sequence[Path], algorithm: Algorithm, policy: Policy, given: Values
) -> list[Sequence[float]]:
    """The advantage of each turn of each rollout of a group. given: values of states for `progress`, and what
    a critic says.
    """
    spec = algorithm.advantage
    if spec.kind in OF_TURNS:
        (of_turns,) = turn_advantages([[rollout(path, given) for path in paths]], spec)
        known = [[*map(float, one)] for one in of_turns if one is not None]
        if spec.kind != "turn_gae":
            return known
        values = [np.array([given[state] for state in path.states]) for path in paths]
        return [
            gae_of_turns(np.array(one), value_K, spec.gamma, spec.lam).tolist()
            for one, value_K in zip(known, values, strict=True)
        ]
    totals, lengths = [path.final + sum(path.rewards) for path in paths], [len(path.states) for path in paths]
    if spec.kind == "gdpo":
        (whole,) = part_advantages([[{"all": total} for total in totals]], {"all": 1.0}, spec)
    else:
        (whole,) = advantages([totals], [lengths], spec)  # type: ignore[assignment]
    return [[float(one)] * length for one, length in zip(whole, lengths, strict=True) if one is not None]


def enumerated_groups(task: str, algorithm: Algorithm, size: int) -> Iterator[EnumeratedGroup]:
    paths = list(TASKS[task]())
    policy = Policy(paths)
    given, chances = arbitrary_values(policy), [policy.chance(path) for path in paths]
    scores = [np.array([policy.score(path, k) for k in range(len(path.states))]) for path in paths]
    for places in combinations_with_replacement(range(len(paths)), size):
        orders = math.factorial(size) / math.prod(map(math.factorial, Counter(places).values()))
        found = advantages_of([paths[place] for place in places], algorithm, policy, given)
        gradients = [np.tensordot(one, scores[place], 1) for one, place in zip(found, places, strict=True)]
        counting = [n for n, one in enumerate(found) if algorithm.zero_advantage == "count" or any(one)]
        tokens = [len(found[n]) for n in counting]
        weighed = weigh(tokens, [0] * len(tokens), algorithm.aggregation)
        yield EnumeratedGroup(
            chance=orders * math.prod(chances[place] for place in places),
            alone=sum(gradients) / size,
            weighed=sum(
                (weight * gradients[n] for weight, n in zip(weighed.weight_S, counting, strict=True)),
                np.zeros_like(policy.logits),
            ),
            divisor=weighed.normalizer if counting else 0.0,
        )


def expected_step(enumerated: Sequence[EnumeratedGroup], groups: int) -> Array:
    """The expected gradient of a batch of so many groups, whose divisors are added up."""
    others = {0.0: 1.0}
    for _ in range(groups - 1):
        together: dict[float, float] = {}
        for total, chance in others.items():
            for one in enumerated:
                key = total + one.divisor
                together[key] = together.get(key, 0.0) + chance * one.chance
        others = together
    return sum(
        groups * one.chance * chance / (total + one.divisor) * one.weighed
        for one in enumerated
        if one.divisor
        for total, chance in others.items()
    )


@dataclass(frozen=True, kw_only=True)
class Bias:
    """Distances from the policy gradient, as a share of its length."""

    advantages: float
    row: float


def bias_of_row(task: str, algorithm: Algorithm, size: int = SIZE, groups: int = 1) -> Bias | None:
    """None: the algorithm refuses rewards of the task."""
    paths = list(TASKS[task]())
    exact = exact_gradient(paths, Policy(paths), AdvantageSpec())
    try:
        enumerated = list(enumerated_groups(task, algorithm, size))
    except ConfigurationError:
        return None
    alone = sum(one.chance * one.alone for one in enumerated)
    step = expected_step(enumerated, groups)
    factor = max(0.0, float((step * exact).sum() / (step * step).sum()))
    return Bias(
        advantages=float(np.linalg.norm(alone - exact) / np.linalg.norm(exact)),
        row=float(np.linalg.norm(factor * step - exact) / np.linalg.norm(exact)),
    )


def said(share: float | None) -> str:
    if share is None:
        return "refused"
    return "0" if share < EXACT else f"{100 * share:.1f} %"


def table() -> str:
    """Rows with the same figures share a line."""
    groups, size = LARGER
    tasks = ", ".join(TASKS)
    lines = [
        f"| algorithms | advantages alone: {tasks} | the row: {tasks} "
        f"| the row, {groups} groups of {size}: bandit |",
        "|---|---|---|---|",
    ]
    names: dict[str, list[str]] = {}
    for name in ROWS:
        algorithm = TABLE[name].algorithm
        small = [bias_of_row(task, algorithm) for task in TASKS]
        larger = ""
        if algorithm.advantage.kind not in OVER_THE_BATCH:
            found = bias_of_row("bandit", algorithm, size, groups)
            larger = said(found and found.row)
        alone = ", ".join(said(one and one.advantages) for one in small)
        row = ", ".join(said(one and one.row) for one in small)
        names.setdefault(f"{alone} | {row} | {larger}", []).append(f"`{name}`")
    return "\n".join(lines + [f"| {', '.join(found)} | {figures} |" for figures, found in names.items()])


OVER_THE_BATCH = ("batch_std", "gdpo", "reinforce++", "reinforce++_baseline")
"""Advantages that mix the groups of a batch: that of one group is not that of a larger batch."""


def main() -> None:
    replace_between_marks(PAGE, table() + "\n", name="bias")


if __name__ == "__main__":
    main()

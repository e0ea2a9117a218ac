"""GDPO: the parts of a reward, normalised one by one, against TRL's formula written down in plain Python."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_rows import attempt

from art.batch.algorithms import resolve
from art.batch.batch_types import GroupRow, RolloutRow
from art.batch.build import build_batch
from art.batch.part_advantages import part_advantages
from art.errors import ConfigurationError
from art.wire.algorithm import AdvantageSpec
from art.wire.rollout_record import SheetRow

SAMPLE = AdvantageSpec(kind="gdpo", std="sample")
TRL_EPSILON, OWN_EPSILON = 1e-4, 1e-6


def trl(groups: list[list[dict[str, float]]], weights: dict[str, float], epsilon: float) -> list[float]:
    """`GRPOTrainer`, multi_objective_aggregation="normalize_then_sum": nanmean and nanstd of each reward
    function in its group, the weighted nansum, less the batch's mean, by the batch's sample deviation.
    """
    sums = []
    for group in groups:
        of_part = {name: [one[name] for one in group if name in one] for name in weights}
        for one in group:
            total = 0.0
            for name, weight in weights.items():
                known = of_part[name]
                if name in one and len(known) > 1:
                    mean, std = statistics.fmean(known), statistics.stdev(known)
                    total += weight * (one[name] - mean) / (std + epsilon)
            sums.append(total)
    if len(sums) < 2:
        return [0.0] * len(sums)
    mean, std = statistics.fmean(sums), statistics.stdev(sums)
    return [(total - mean) / (std + epsilon) for total in sums]


NUMBERS = st.integers(-8, 8).map(lambda number: number / 4)
ROLLOUTS = st.fixed_dictionaries({"right": NUMBERS}, optional={"short": NUMBERS, "polite": NUMBERS})
GROUPS = st.lists(st.lists(ROLLOUTS, min_size=1, max_size=6), min_size=1, max_size=5)
WEIGHTS = st.fixed_dictionaries({"right": st.floats(0.1, 3)}, optional={"short": st.floats(-3, 3)})


@given(groups=GROUPS, weights=WEIGHTS)
def test_it_is_the_formula_of_trl(groups: list[list[dict[str, float]]], weights: dict[str, float]) -> None:
    if not all(any(name in one for group in groups for one in group) for name in weights):
        with pytest.raises(ConfigurationError, match="No rollout has the part 'short'"):
            part_advantages(groups, weights, SAMPLE)
        return
    found = [value for values in part_advantages(groups, weights, SAMPLE) for value in values]
    expected = trl(groups, weights, OWN_EPSILON)
    # What is rounding in the reference is exactly 0 here.
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    of_one_reward = [{tuple(sorted(one.items())) for one in group} for group in groups]
    for values, kinds in zip(part_advantages(groups, weights, SAMPLE), of_one_reward, strict=True):
        assert len(kinds) > 1 or not any(values)


def test_trl_s_own_divisor_changes_the_fourth_digit() -> None:
    groups = [[{"a": 1.0, "b": 0.2}, {"a": 0.0, "b": 0.9}, {"a": 1.0, "b": 0.4}]]
    (found,) = part_advantages(groups, {"a": 1.0, "b": 0.5}, SAMPLE)
    assert found == pytest.approx(trl(groups, {"a": 1.0, "b": 0.5}, TRL_EPSILON), rel=1e-3)


def test_parts_that_cancel_in_a_sum_still_teach() -> None:
    """Right and long, wrong and short: one sum for all, and three different advantages."""
    group = [{"right": 1.0, "short": 0.0}, {"right": 0.0, "short": 1.0}, {"right": 0.5, "short": 0.5}]
    (found,) = part_advantages([group], {"right": 2.0, "short": 1.0}, SAMPLE)
    assert found[0] is not None and found[0] > found[2] == 0.0 > (found[1] or 0.0)


def test_negative_advantages_are_balanced_and_unscored_ones_are_none() -> None:
    spec = AdvantageSpec(kind="gdpo", balance=0.5)
    (found,) = part_advantages([[{"a": 1.0}, {"a": 0.0}, None]], {"a": 1.0}, spec)
    assert found[:2] == pytest.approx([1.0, -0.5], rel=1e-5) and found[2] is None


def with_parts(name: str, reward: float | None, **parts: float) -> RolloutRow:
    row = attempt(name, reward, 2)
    return RolloutRow(rollout=name, reward=reward, samples=row.samples, parts=parts)


def test_a_step_takes_the_parts_and_not_their_sum() -> None:
    algorithm = resolve("gdpo", reward_parts={"right": 2.0, "short": 1.0})
    group = [
        with_parts("a", 1.0, right=1.0, short=0.0),
        with_parts("b", 1.0, right=0.0, short=1.0),
        with_parts("c", None, right=1.0, short=1.0),
        with_parts("d", 1.0),
    ]
    batch = build_batch([GroupRow(rollouts=group)], algorithm=algorithm)
    assert batch.sheet.fates == {
        "trained": SheetRow(rollouts=2, tokens=4),
        "unscored": SheetRow(rollouts=2, tokens=4),
    }
    half = math.sqrt(0.5)
    assert batch.entries.advantage_E.tolist() == pytest.approx([half, half, -half, -half], rel=1e-4)


def test_a_step_without_a_named_part_is_refused_by_its_name() -> None:
    algorithm = resolve("gdpo", reward_parts={"right": 1.0, "shrot": 1.0})
    group = GroupRow(rollouts=[with_parts("a", 1.0, right=1.0), with_parts("b", 0.0, right=0.0)])
    with pytest.raises(ConfigurationError, match=r"the part 'shrot'.*trajectory.metrics\['shrot'\]"):
        build_batch([group], algorithm=algorithm)

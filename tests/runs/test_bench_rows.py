"""What a row of `make bench` says of its goal, and what a skill is made of."""

from __future__ import annotations

import pytest
from bench.learning.held_out import Skill, skill_rows
from bench.rows import Row


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row(name="a", ours=2.0, peer=1.0, ratio=2.0, unit="x", goal=1.5), True),
        (Row(name="a", ours=2.0, peer=1.0, ratio=2.0, unit="x", goal=2.5), False),
        (Row(name="a", ours=2.0, unit="x", goal=2.0), True),
        (Row(name="a", ours=1.9, unit="x", goal=2.0), False),
        (Row(name="a", ours=80.0, unit="ms", goal=100.0, at_most=True), True),
        (Row(name="a", ours=120.0, unit="ms", goal=100.0, at_most=True), False),
        (Row(name="a", ours=120.0, unit="ms"), None),
    ],
)
def test_a_goal_is_a_ratio_with_a_peer_and_a_figure_without(row: Row, met: bool | None) -> None:
    assert row.met is met


def test_a_gain_within_four_standard_errors_is_none() -> None:
    before = Skill.of([[0, 1]] * 50 + [[0, 0]] * 50, greedy=[0.0] * 100)
    assert (before.sampled, before.pass_at_8, before.greedy) == (0.25, 0.5, 0.0)
    same = skill_rows("task", before, Skill.of([[0, 1]] * 52 + [[0, 0]] * 48, greedy=[1.0] * 100))
    better = skill_rows("task", before, Skill.of([[1, 1]] * 50 + [[0, 1]] * 50, greedy=[1.0] * 100))
    assert (same[0].met, better[0].met) == (False, True)

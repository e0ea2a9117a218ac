"""Figures of two opinions, and of scores beside lengths."""

from __future__ import annotations

import pytest
from formula_judge import scores_of
from hypothesis import given
from hypothesis import strategies as st

from art.rewards.judge_view import View
from art.types import Unscored
from art_extensions.judge_checks.agreement import (
    Covariation,
    agreement,
    covariation,
    holdout_gap,
    length_sums,
    pair_agreement,
    pair_conflict,
    ranks,
    scored_by_both,
)

values = st.lists(st.integers(0, 9).map(float), min_size=2, max_size=9)


def test_ranks_share_places() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]
    assert ranks([]) == []


@given(values)
def test_an_order_agrees_with_itself_and_not_with_its_reverse(found: list[float]) -> None:
    assert pair_agreement(found, found) == 1.0
    reverse = pair_agreement(found, [-one for one in found])
    assert reverse == -1.0 if len(set(found)) == len(found) else reverse > -1.0


def test_pairs_are_counted_alike_otherwise_and_undecided() -> None:
    """Of six pairs four are ordered alike, one the other way round, and one is a tie to one side only."""
    assert pair_agreement([0.1, 0.2, 0.2, 0.3], [0.1, 0.4, 0.2, 0.3]) == pytest.approx((4 - 1) / 6)


def test_one_that_sees_no_difference_neither_agrees_nor_disagrees_with_one_that_does() -> None:
    assert pair_agreement([0.5, 0.5, 0.5], [0.1, 0.5, 0.9]) == 0.0
    assert pair_agreement([0.5, 0.5, 0.5], [0.2, 0.2, 0.2]) == 1.0


def test_noise_where_nothing_differs_is_no_disagreement() -> None:
    assert pair_agreement([0.70, 0.71, 0.69], [0.72, 0.69, 0.70]) == 1.0


def test_contradictions_count_by_their_size() -> None:
    """12 is contradicted by 0.3, 13 by 0.1, 23 by 0.2."""
    assert pair_conflict([0.9, 0.2, 0.5], [0.3, 0.6, 0.4]) == pytest.approx((0.3 + 0.1 + 0.2) / 3)
    assert pair_conflict([0.1, 0.9], [0.5, 0.5]) == 0.0
    assert pair_conflict([0.51, 0.49], [0.49, 0.51]) == pytest.approx(0.02)


def test_unscored_are_in_no_pair() -> None:
    first = scores_of(0.5, Unscored("late"), 0.1)
    second = scores_of(0.4, 0.3, Unscored("late"))
    assert scored_by_both(first, second) == [(0.5, 0.4)]
    assert agreement(scored_by_both(first, second)) == {}
    assert "holdout_agreement" not in holdout_gap(scored_by_both(first, second))


def test_agreement_is_order_and_distance() -> None:
    found = agreement(scored_by_both(scores_of(0.9, 0.5, 0.1), scores_of(0.7, 0.5, 0.3)))
    assert found == {"agreement": pytest.approx(1.0), "order_difference": pytest.approx(0.4 / 3)}


def test_holdout_gap_is_signed() -> None:
    found = holdout_gap(scored_by_both(scores_of(0.9, 0.7), scores_of(0.2, 0.4)))
    assert found["holdout"] == pytest.approx(0.3)
    assert found["holdout_gap"] == pytest.approx(0.5)
    assert found["holdout_agreement"] == pytest.approx(-1.0)


def test_lengths_are_compared_within_groups_only() -> None:
    """In each group the longer is worse; over both it would seem better."""

    def views(*lengths: int) -> list[View]:
        return [View(conversations=((),), length=length) for length in lengths]

    total = Covariation()
    for lengths, scores in (((10, 20), (0.2, 0.1)), ((100, 200), (0.9, 0.8))):
        sums = length_sums(views(*lengths), scores_of(*scores))
        total += Covariation(xy=sums["length_xy"], xx=sums["length_xx"], yy=sums["length_yy"])
        assert sums["length_pairs"] == 1
    assert total.correlation() == pytest.approx(-1.0)
    assert covariation([1, 1], [2, 3]).correlation() is None
    assert (
        length_sums(views(10, 20), scores_of(0.5, 0.5)) == length_sums(views(10, 10), scores_of(0, 1)) == {}
    )

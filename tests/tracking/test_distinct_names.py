"""The number of distinct names: exact where all are kept, close where not, in memory that has a bound."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.tracking.distinct_names import KEPT, LONGEST, DistinctNames
from art.tracking.metrics_builder import MetricsBuilder


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.text(max_size=2 * LONGEST))))
def test_few_names_are_counted_as_a_set_counts_them(parts: list[list[str]]) -> None:
    names, seen = DistinctNames(), set[str]()
    for part in parts:
        names.add(part)
        seen.update(part)
        assert names.count() == len(seen)
        names = DistinctNames(names.list_names())
    assert all(len(name) <= LONGEST for name in names.list_names())


@pytest.mark.parametrize("total", [KEPT - 1, KEPT, 5 * KEPT])
def test_many_names_are_counted_within_five_standard_errors(total: int) -> None:
    order = [f"scenario {number}" for number in range(total)] * 2
    random.Random(0).shuffle(order)
    names, counts = DistinctNames(), [0]
    for start in range(0, len(order), 997):
        names.add(order[start : start + 997])
        counts.append(names.count())
    assert counts == sorted(counts), "it never falls"
    assert abs(counts[-1] - total) <= (0 if total < KEPT else 0.08 * total)
    assert len(names.list_names()) == min(total, KEPT)
    again = DistinctNames(names.list_names())
    assert (again.count(), again.list_names()) == (names.count(), names.list_names())
    again.add(order)
    assert again.count() == names.count(), "all of them were there"


async def test_the_state_of_a_long_run_has_a_bound() -> None:
    """New scenarios in each step, some of them whole texts: the second half of the run adds nothing."""
    sizes, builder, steps = [], MetricsBuilder("train"), 200
    for step in range(steps):
        builder.add_data(scenario_ids=[f"{step}/{place}" * (1 if place % 2 else 100) for place in range(60)])
        counted = (await builder.flush())["data/cum/num_unique_scenarios"]
        if (step + 1) % (steps // 2) == 0:
            sizes.append(len(json.dumps(builder.state_dict())))
    assert counted == pytest.approx(60 * steps, rel=0.08)
    assert sizes[1] < 1.1 * sizes[0] < 1.2 * KEPT * LONGEST

"""The weight of a group: 2 is the group twice, in the loss and in what it is divided by."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_rows import attempt

from art.batch.batch_types import Batch, GroupRow
from art.batch.build import build_batch
from art.errors import ConfigurationError
from art.wire.algorithm import AdvantageSpec, AggregationSpec, Algorithm, MismatchSpec

KINDS: list[dict[str, Any]] = [
    {"kind": "token_mean"},
    {"kind": "sequence_mean"},
    {"kind": "group_mean"},
    {"kind": "constant", "length": 7},
]


def group(name: str, rewards: list[float], lengths: list[int], weight: float = 1.0) -> GroupRow:
    rollouts = [
        attempt(f"{name}{place}", reward, length)
        for place, (reward, length) in enumerate(zip(rewards, lengths, strict=True))
    ]
    return GroupRow(rollouts=rollouts, weight=weight)


def gradient(batch: Batch) -> dict[int, float]:
    """What each node of the tree is pushed by, on policy: the sum of weight x advantage over its entries."""
    pushed: dict[int, float] = defaultdict(float)
    entries = batch.entries
    for token, advantage, weight in zip(
        entries.token_E.tolist(), entries.advantage_E.tolist(), entries.weight_E.tolist(), strict=True
    ):
        pushed[token] += advantage * weight / batch.normalizer
    return pushed


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["kind"])
@pytest.mark.parametrize("zero", ["drop", "count"])
@given(
    rewards=st.lists(st.integers(0, 3).map(float), min_size=2, max_size=4),
    lengths=st.lists(st.integers(1, 6), min_size=4, max_size=4),
    times=st.integers(1, 4),
)
def test_a_weight_is_the_number_of_times(
    kind: dict[str, Any], zero: Any, rewards: list[float], lengths: list[int], times: int
) -> None:
    algorithm = Algorithm(
        advantage=AdvantageSpec(kind="group"), aggregation=AggregationSpec(**kind), zero_advantage=zero
    )
    other = group("other", [1.0, 0.0, 0.0], [2, 5, 3])
    size = lengths[: len(rewards)]
    copies = [group(f"copy{number}.", rewards, size) for number in range(times)]
    weighed = build_batch([group("w", rewards, size, weight=float(times)), other], algorithm=algorithm)
    repeated = build_batch([*copies, other], algorithm=algorithm)
    # float32: a sum may be much smaller than what is added
    assert gradient(weighed) == pytest.approx(gradient(repeated), rel=1e-5, abs=1e-7)


def test_one_weight_for_all_changes_nothing() -> None:
    plain, heavy = (
        build_batch([group("a", [1.0, 0.0], [2, 3], weight), group("b", [0.0, 1.0], [4, 1], weight)])
        for weight in (1.0, 0.25)
    )
    assert gradient(plain) == pytest.approx(gradient(heavy))


def test_advantages_stay_as_they_are() -> None:
    batch = build_batch([group("a", [1.0, 0.0], [1, 1], 3.0)])
    assert batch.entries.advantage_E.tolist() == pytest.approx([1.0, -1.0], rel=1e-5)


def test_a_trainer_that_weighs_anew_refuses_weights() -> None:
    algorithm = Algorithm(mismatch=[MismatchSpec(kind="token_mask", high=2.0)], masked="drop")
    with pytest.raises(ConfigurationError, match=r"weight 2\.0, which masked='drop' does not take"):
        build_batch([group("a", [1.0, 0.0], [1, 1], 2.0)], algorithm=algorithm)

"""Weights and divisor of each aggregation against the definition: a mean of terms, the long way round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.batch.aggregation import trains_without_advantage, weigh
from art.wire.algorithm import (
    AdvantageSpec,
    AggregationSpec,
    Algorithm,
    CriticSpec,
    KlSpec,
    TeacherSpec,
)

SEQUENCES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=12)
"""The group and the tokens of each."""
KINDS = ["token_mean", "sequence_mean", "group_mean", "constant"]


def by_definition(kind: str, terms: list[np.ndarray], groups: list[int], length: int) -> float:
    """The number that the terms of all tokens become."""
    if kind == "token_mean":
        return float(np.concatenate(terms).mean())
    if kind == "sequence_mean":
        return float(np.mean([term.mean() for term in terms]))
    if kind == "group_mean":
        each = [
            np.concatenate([t for t, g in zip(terms, groups, strict=True) if g == one]) for one in set(groups)
        ]
        return float(np.mean([term.mean() for term in each]))
    return float(sum(term.sum() for term in terms) / (len(terms) * length))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(sequences=SEQUENCES, seed=st.integers(0, 1000))
def test_the_weighted_sum_is_the_mean_it_is_named_after(
    kind: str, sequences: list[tuple[int, int]], seed: int
) -> None:
    groups, tokens = [group for group, _ in sequences], [count for _, count in sequences]
    rng = np.random.default_rng(seed)
    terms = [rng.normal(size=count) for count in tokens]
    spec = AggregationSpec(kind=kind, length=50 if kind == "constant" else None)  # type: ignore[arg-type]
    weighed = weigh(tokens, groups, spec)
    total = sum(w * term.sum() for w, term in zip(weighed.weight_S, terms, strict=True)) / weighed.normalizer
    assert total == pytest.approx(by_definition(kind, terms, groups, 50), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_divides_by_something(kind: str) -> None:
    spec = AggregationSpec(kind=kind, length=7 if kind == "constant" else None)  # type: ignore[arg-type]
    weighed = weigh([], [], spec)
    assert weighed.normalizer > 0 and len(weighed.weight_S) == 0


def test_who_has_a_gradient_without_an_advantage() -> None:
    teacher = TeacherSpec(kind="base")
    assert not trains_without_advantage(Algorithm())
    assert not trains_without_advantage(Algorithm(advantage=AdvantageSpec(kind="reinforce++")))
    for algorithm in (
        Algorithm(kl=KlSpec(coefficient=0.1)),
        Algorithm(kl=KlSpec(coefficient=0.1, place="shaped_advantage")),
        Algorithm(critic=CriticSpec(), advantage=AdvantageSpec(kind="gae")),
        Algorithm(teacher=teacher, advantage=AdvantageSpec(kind="distillation")),
        Algorithm(advantage=AdvantageSpec(kind="none")),
    ):
        assert trains_without_advantage(algorithm)

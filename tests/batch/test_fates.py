"""What becomes of a rollout under an algorithm: left out, and why, and what it still counts for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from made_rows import CENTERED, FORMED, GREEDY, attempt, rollout, sample, two_turns

from art.batch.batch_types import GroupRow, RolloutRow
from art.batch.build import build_batch
from art.errors import ConfigurationError
from art.wire.algorithm import AdvantageSpec, AggregationSpec, Algorithm, CriticSpec, OverlongSpec
from art.wire.rollout_record import ContextRow, SheetRow
from art.wire.training import SamplingSpec


def test_a_truncated_rollout_is_trained_unless_the_algorithm_leaves_it_out() -> None:
    cut, rest = attempt("cut", 1.0, 3, truncated=True), attempt("rest", 0.0, 2)
    group = [GroupRow(rollouts=[cut, rest])]
    assert build_batch(group, algorithm=CENTERED).sheet.fates == {"trained": SheetRow(rollouts=2, tokens=5)}
    dropped = build_batch(group, algorithm=CENTERED.model_copy(update={"truncated": "drop"}))
    assert dropped.sheet.fates == {
        "truncated": SheetRow(rollouts=1, tokens=3),
        "trained": SheetRow(rollouts=1, tokens=2),
    }
    # Its reward still counts in the group; its tokens neither in the loss nor in what it is divided by.
    assert dropped.entries.advantage_E.tolist() == [-0.5, -0.5] and dropped.normalizer == 1


def test_only_the_last_completion_tells_a_truncated_rollout() -> None:
    early = rollout("a", 1.0, sample("a0", [1], [2], truncated=True), sample("a1", [1, 2, 3], [4]))
    algorithm = CENTERED.model_copy(update={"truncated": "drop"})
    sheet = build_batch([GroupRow(rollouts=[early, attempt("b", 0.0, 1)])], algorithm=algorithm).sheet
    assert sheet.fates == {"trained": SheetRow(rollouts=2, tokens=3)}


@pytest.mark.parametrize(
    ("first", "wanted"),
    [
        (attempt("x", None, 2, truncated=True), "unscored"),
        (rollout("x", 1.0), "no_samples"),
        (rollout("x", None), "no_samples"),
        (attempt("x", 1.0, 9, truncated=True), "truncated"),
        (attempt("x", 1.0, 9), "overlong"),
        (attempt("x", 0.0, 2), "zero_advantage"),
    ],
)
def test_a_rollout_with_several_reasons_has_one_fate(first: RolloutRow, wanted: str) -> None:
    algorithm = CENTERED.model_copy(update={"truncated": "drop"})
    batch = build_batch([GroupRow(rollouts=[first, attempt("y", 0.0, 1)])], algorithm=algorithm, max_length=8)
    assert batch.sheet.fates[wanted].rollouts >= 1
    assert sum(row.rollouts for row in batch.sheet.fates.values()) == 2


def test_a_group_whose_siblings_all_failed_or_were_unscored_trains_nothing() -> None:
    batch = build_batch([GroupRow(rollouts=[attempt("a", 1.0, 2), attempt("b", None, 2)], failed=6)])
    assert batch.empty and batch.normalizer > 0
    assert batch.sheet.fates == {
        "failed": SheetRow(rollouts=6, tokens=0),
        "unscored": SheetRow(rollouts=1, tokens=2),
        "zero_advantage": SheetRow(rollouts=1, tokens=2),
    }


def test_length_is_punished_before_rewards_are_compared() -> None:
    algorithm = CENTERED.model_copy(update={"overlong": OverlongSpec(limit=6, band=4)})
    batch = build_batch(
        [GroupRow(rollouts=[attempt("a", 1.0, 2), attempt("b", 1.0, 4), attempt("c", 1.0, 9)])],
        algorithm=algorithm,
    )
    # 2 tokens: 0. 4 of limit 6 - band 4: half. 9: all. The mean of 1, 0.5 and 0 is 0.5.
    assert batch.metrics["data/overlong_penalty_mean"] == -0.5
    assert batch.sheet.fates["zero_advantage"].rollouts == 1
    assert batch.entries.advantage_E.tolist() == [0.5] * 2 + [-0.5] * 9
    # The rewards that the program logs are 1 on average; advantages are of these.
    assert batch.metrics["data/shaped_reward_mean"] == 0.5
    assert not build_batch([], algorithm=CENTERED).metrics.keys() & {
        "data/overlong_penalty_mean",
        "data/shaped_reward_mean",
    }


def test_a_discounted_reward_is_counted_beside_the_raw_one() -> None:
    group = [GroupRow(rollouts=[attempt("a", 1.0, 2), attempt("b", 1.0, 3)])]
    tokens = Algorithm(advantage=AdvantageSpec(kind="reinforce++", gamma=0.5))
    assert build_batch(group, algorithm=tokens).metrics["data/shaped_reward_mean"] == (0.5 + 0.25) / 2
    plain = Algorithm(advantage=AdvantageSpec(kind="reinforce++"))
    assert "data/shaped_reward_mean" not in build_batch(group, algorithm=plain).metrics
    late = two_turns("late", 1.0, 9)
    early = dataclasses.replace(two_turns("early", 1.0, 8), turn_rewards={"early.0": 1.0})
    turns = Algorithm(advantage=AdvantageSpec(kind="turn_rloo", gamma=0.5))
    found = build_batch([GroupRow(rollouts=[late, early])], algorithm=turns)
    # The late reward is worth half at the first turn; the early one is all there. (The last turns: 1 and 0.)
    assert found.metrics["reward/turn_return_mean"] == (0.5 + 1.0 + 1.0 + 0.0) / 4
    assert "data/shaped_reward_mean" not in found.metrics, "it would say the same of the first turns"


def test_rollouts_without_advantage_count_in_the_divisor_where_the_algorithm_says_so() -> None:
    group = GroupRow(rollouts=[attempt("a", 1.0, 2), attempt("b", 0.5, 3), attempt("c", 0.0, 5)])
    flat = GroupRow(rollouts=[attempt("d", 1.0, 4), attempt("e", 1.0, 4)])
    for kind, drop, count in (
        ("token_mean", 2 + 5, 2 + 3 + 5 + 4 + 4),
        ("sequence_mean", 2, 5),
        ("group_mean", 1, 2),
        ("constant", 2 * 100, 5 * 100),
    ):
        spec = AggregationSpec(kind=kind, length=100 if kind == "constant" else None)  # type: ignore[arg-type]
        for mode, wanted in (("drop", drop), ("count", count)):
            algorithm = Algorithm(aggregation=spec, zero_advantage=mode)  # type: ignore[arg-type]
            batch = build_batch([group, flat], algorithm=algorithm)
            assert batch.normalizer == wanted, (kind, mode)
            assert len(batch.entries) == 7 and batch.sheet.fates["zero_advantage"].rollouts == 3
    counted = Algorithm(aggregation=AggregationSpec(kind="group_mean"), zero_advantage="count")
    assert build_batch([group], algorithm=counted).entries.weight_E.tolist() == pytest.approx([0.1] * 7)


@pytest.mark.parametrize(
    "parts",
    [
        {"kl": {"coefficient": 0.1}},
        {"kl": {"coefficient": 0.1, "estimator": "k1", "place": "shaped_advantage"}},
        {"advantage": {"kind": "gae"}, "critic": {}},
        {"advantage": {"kind": "distillation"}, "teacher": {"kind": "base"}},
        {"advantage": {"kind": "none"}},
    ],
)
def test_what_has_a_gradient_without_an_advantage_is_trained(parts: dict[str, object]) -> None:
    algorithm = Algorithm.model_validate(parts)
    batch = build_batch(
        [GroupRow(rollouts=[attempt("a", 0.0, 2), attempt("b", 0.0, 3)])], algorithm=algorithm
    )
    assert batch.sheet.fates == {"trained": SheetRow(rollouts=2, tokens=5)} and len(batch.entries) == 5


def test_the_trainer_gets_the_reward_itself_where_it_computes_the_advantage() -> None:
    algorithm = Algorithm(advantage=AdvantageSpec(kind="gae"), critic=CriticSpec())
    batch = build_batch(
        [GroupRow(rollouts=[attempt("a", 2.0, 2), attempt("b", -1.0, 1)])], algorithm=algorithm
    )
    assert batch.entries.advantage_E.tolist() == [2.0, 2.0, -1.0]


def test_the_trainer_gets_the_rewards_of_turns_where_it_values_turns() -> None:
    """What context earns, the trained turn before it earned; before the first one it follows from nothing."""
    turns = [
        sample("0", [1], [2], untrainable=GREEDY),
        sample("1", [1, 2, 3], [4, 5]),
        sample("2", [1, 2, 3, 4, 5, 6], [7], untrainable=GREEDY),
        sample("3", [1, 2, 3, 4, 5, 6, 7, 8], []),
        sample("4", [1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11]),
    ]
    earned = {str(at): reward for at, reward in enumerate([100.0, 1.0, 2.0, 4.0, 8.0])}
    row = dataclasses.replace(rollout("a", 115.0 + 16.0, *turns), turn_rewards=earned)
    algorithm = Algorithm(advantage=AdvantageSpec(kind="turn_gae"), critic=CriticSpec())
    batch = build_batch([GroupRow(rollouts=[row, attempt("b", 3.0, 2)])], algorithm=algorithm)
    assert batch.entries.advantage_E.tolist() == [7.0, 7.0, 24.0, 24.0, 3.0, 3.0]
    assert batch.entries.place_E is not None and batch.entries.place_E.tolist() == [0, 1, 0, 1, 0, 1]
    assert [one.advantage for one in batch.fates[0]] == [None, None]
    assert build_batch([], algorithm=algorithm).empty


def test_an_advantage_too_large_for_the_trainer_is_refused_by_name() -> None:
    group = [GroupRow(rollouts=[attempt("huge", 1e300, 2), attempt("b", 0.0, 1)])]
    with pytest.raises(ConfigurationError, match=r"rollout 'huge' is 5e\+299.*scale the rewards"):
        build_batch(group, algorithm=CENTERED)
    assert len(build_batch(group).entries) == 3  # divided by its deviation it fits


def test_a_discounted_return_is_cut_at_the_turns() -> None:
    algorithm = Algorithm(advantage=AdvantageSpec(kind="reinforce++", gamma=0.5))
    batch = build_batch(
        [GroupRow(rollouts=[two_turns("a", 1.0, 30), two_turns("b", 0.0, 31)])], algorithm=algorithm
    )
    returns = np.array([0.125, 0.25, 0.5, 1.0, 0, 0, 0, 0])
    wanted = (returns - returns.mean()) / np.sqrt(returns.var() + 1e-8)
    assert np.allclose(batch.entries.advantage_E, wanted, rtol=1e-6)


def test_distributions_are_told_once_and_named_by_each_entry() -> None:
    warm, top = SamplingSpec(temperature=0.7), SamplingSpec(top_p=0.9)
    group = GroupRow(
        rollouts=[
            rollout("a", 1.0, sample("a0", [1], [2, 3], sampling=warm), sample("a1", [9], [2])),
            rollout("b", 0.0, sample("b0", [1], [4], sampling=top), sample("b1", [8], [4], sampling=warm)),
        ]
    )
    batch = build_batch([group])
    assert batch.sampling == (warm, SamplingSpec(), top)
    assert batch.entries.sampling_E.tolist() == [0, 0, 1, 2, 0]
    assert batch.entries.sequence_E.tolist() == [0, 0, 0, 1, 1]


def test_an_untrainable_sample_is_context_and_the_rest_of_its_rollout_is_trained() -> None:
    plan = sample("a.0", [5, 6], [7, 8], untrainable=GREEDY)
    act = sample("a.1", [5, 6, 7, 8, 20], [9, 10])
    leaf = sample("a.2", [5, 40], [41, 42, 43], untrainable=FORMED)
    batch = build_batch(
        [GroupRow(rollouts=[rollout("a", 1.0, plan, act, leaf), attempt("b", 0.0, 3)])], algorithm=CENTERED
    )
    assert batch.sheet.fates == {
        "trained": SheetRow(rollouts=2, tokens=5),
        "context": SheetRow(rollouts=0, tokens=5),
    }
    assert batch.sheet.context == {
        "greedy": ContextRow(samples=1, tokens=2),
        "constraint": ContextRow(samples=1, tokens=3),
    }
    # Its ids are in the prompt of what follows; what follows nothing is not forwarded.
    ids = batch.tree.tokens_T.tolist()
    assert ids[:7] == [5, 6, 7, 8, 20, 9, 10] and 41 not in ids
    assert batch.tree.tokens_T[batch.entries.token_E].tolist() == [9, 10, 10, 11, 12]
    assert batch.entries.advantage_E.tolist() == [0.5] * 2 + [-0.5] * 3 and batch.normalizer == 2
    assert batch.entries.weight_E.tolist() == pytest.approx([1 / 2] * 2 + [1 / 3] * 3)


def test_a_rollout_of_nothing_but_context_counts_in_its_group_s_statistics() -> None:
    greedy = attempt("greedy", 1.0, 4, untrainable=GREEDY)
    batch = build_batch(
        [GroupRow(rollouts=[greedy, attempt("b", 0.0, 2), attempt("c", 0.5, 1)])], algorithm=CENTERED
    )
    assert batch.sheet.fates["untrainable"] == SheetRow(rollouts=1, tokens=4)
    assert batch.sheet.context == {"greedy": ContextRow(samples=1, tokens=4)}
    assert batch.entries.advantage_E.tolist() == [-0.5, -0.5]  # c is the mean
    discarded = build_batch([GroupRow(rollouts=[greedy], discarded=True)])
    assert discarded.sheet.fates == {"discarded": SheetRow(rollouts=1, tokens=4)}


def test_a_discounted_return_runs_over_the_tokens_that_are_trained() -> None:
    algorithm = Algorithm(advantage=AdvantageSpec(kind="reinforce++", gamma=0.5))
    first = sample("a.0", [1], [2, 3], untrainable=GREEDY)
    mixed = rollout("a", 1.0, first, sample("a.1", [1, 2, 3], [4, 5]))
    batch = build_batch([GroupRow(rollouts=[mixed, attempt("b", 0.0, 2)])], algorithm=algorithm)
    returns = np.array([0.5, 1.0, 0, 0])
    wanted = (returns - returns.mean()) / np.sqrt(returns.var() + 1e-8)
    assert np.allclose(batch.entries.advantage_E, wanted, rtol=1e-6)


def test_what_is_context_may_be_longer_than_what_can_be_trained() -> None:
    long = sample("a.0", [1], list(range(50)), untrainable=GREEDY)
    one = rollout("a", 1.0, long, sample("a.1", [1], [2]))
    batch = build_batch([GroupRow(rollouts=[one, attempt("b", 0.0, 1)])], max_length=10)
    assert batch.sheet.fates["trained"].rollouts == 2 and batch.sheet.fates["context"].tokens == 50


SAME = [attempt("a", 1.0, 2), attempt("b", 0.0, 2)]
"""The same tokens twice, with different rewards."""


def test_rollouts_of_the_same_tokens_whose_rewards_cancel_out_are_counted() -> None:
    others = [attempt("c", 1.0, 3), attempt("d", 0.0, 5)]
    for rollouts in (SAME, [*SAME, *others]):
        batch = build_batch([GroupRow(rollouts=rollouts), GroupRow(rollouts=[attempt("e", 1.0, 2)])])
        assert batch.metrics["data/identical_rollouts"] == 2


@pytest.mark.parametrize(
    ("rollouts", "parts"),
    [
        ([*SAME, attempt("c", 0.0, 3)], {}),  # what is left of their advantages counts
        ([attempt("a", 1.0, 2), attempt("b", 0.0, 2, sampling=SamplingSpec(temperature=0.5))], {}),
        ([attempt("a", 1.0, 2, step=1), attempt("b", 0.0, 2, step=2)], {}),
        (SAME, {"advantage": {"kind": "group", "balance": 0.5}}),
        (SAME, {"advantage": {"kind": "gae"}, "critic": {}}),
        (SAME, {"kl": {"coefficient": 0.1}}),
    ],
)
def test_the_same_tokens_are_not_counted_where_a_gradient_is_left(
    rollouts: list[RolloutRow], parts: dict[str, object]
) -> None:
    batch = build_batch([GroupRow(rollouts=rollouts)], algorithm=Algorithm.model_validate(parts))
    assert batch.sheet.fates.keys() == {"trained"} and "data/identical_rollouts" not in batch.metrics

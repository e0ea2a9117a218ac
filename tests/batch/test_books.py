"""Whatever rolls in, under whatever algorithm: the books balance and the divisor is an independent count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rows import FORMED, GREEDY, rollout, sample

from art.batch.aggregation import trains_without_advantage
from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.wire.algorithm import Algorithm, Estimator
from art.wire.rollout_record import ContextRow, SheetRow

pytestmark = pytest.mark.slow


@st.composite
def group_rows(draw: st.DrawFn) -> list[GroupRow]:
    prompts = st.lists(st.integers(0, 3), min_size=1, max_size=6)
    completions = st.lists(st.integers(0, 3), max_size=4)
    groups = []
    for g in range(draw(st.integers(0, 4))):
        rollouts = []
        for r in range(draw(st.integers(0, 4))):
            rows = [
                sample(
                    f"{g}.{r}.{s}",
                    draw(prompts),
                    draw(completions),
                    truncated=draw(st.booleans()),
                    untrainable=draw(st.sampled_from([None, None, GREEDY, FORMED])),
                )
                for s in range(draw(st.integers(0, 3)))
            ]
            rollouts.append(rollout(f"{g}.{r}", draw(st.sampled_from([None, 0.0, 0.5, 1.0])), *rows))
        groups.append(GroupRow(rollouts=rollouts, failed=draw(st.integers(0, 2))))
    return groups


@st.composite
def algorithms(draw: st.DrawFn) -> Algorithm:
    kind = draw(st.sampled_from(sorted(get_args(Estimator))))
    aggregation = draw(st.sampled_from(["token_mean", "sequence_mean", "group_mean", "constant"]))
    return Algorithm.model_validate(
        {
            "advantage": {
                "kind": kind,
                "std": draw(st.sampled_from(["population", "sample"])),
                "gamma": draw(st.sampled_from([1.0, 0.9])) if kind == "reinforce++" else 1.0,
            },
            "aggregation": {"kind": aggregation, "length": 7 if aggregation == "constant" else None},
            "zero_advantage": draw(st.sampled_from(["drop", "count"])),
            "truncated": draw(st.sampled_from(["train", "drop"])),
            "overlong": draw(st.sampled_from([None, {"limit": 5, "band": 3, "penalty": 0.25}])),
            "kl": draw(st.sampled_from([None, {"coefficient": 0.1}])),
            "reward_parts": {"part": 1.0} if kind == "gdpo" else {},
        }
    )


def trainable(one: RolloutRow) -> list[SampleRow]:
    return [row for row in one.samples if row.untrainable is None]


def sampled_tokens(rows: Iterable[SampleRow]) -> int:
    return sum(len(row.completion_ids) for row in rows)


def outside(batch_rows: list[GroupRow], algorithm: Algorithm, max_length: int | None) -> dict[str, str]:
    """Rollouts that cannot be trained whatever they are worth, and why: by the definitions of the fates."""
    found = {}
    for one in (r for group in batch_rows for r in group.rollouts):
        if not any(s.completion_ids for s in one.samples):
            found[one.rollout] = "no_samples"
        elif one.reward is None:
            found[one.rollout] = "unscored"
        elif algorithm.truncated == "drop" and one.samples[-1].truncated:
            found[one.rollout] = "truncated"
        elif max_length and any(
            len(s.prompt_ids) + len(s.completion_ids) > max_length for s in trainable(one)
        ):
            found[one.rollout] = "overlong"
        elif not sampled_tokens(trainable(one)):
            found[one.rollout] = "untrainable"
    return found


@settings(max_examples=150, deadline=None)
@given(group_rows(), algorithms(), st.sampled_from([None, 6]))
def test_under_any_algorithm_the_books_balance_and_the_divisor_is_its_own_count(
    groups: list[GroupRow], algorithm: Algorithm, max_length: int | None
) -> None:
    if algorithm.advantage.kind == "maxrl" and algorithm.overlong:
        return  # a punished reward below zero is refused by maxrl
    batch = build_batch(groups, algorithm=algorithm, max_length=max_length)
    left_out = outside(groups, algorithm, max_length)
    rollouts = [r for group in groups for r in group.rollouts]
    sheet = batch.sheet
    assert sheet.started.rollouts == len(rollouts) + sum(group.failed for group in groups)
    assert sheet.started.rollouts == sum(row.rollouts for row in sheet.fates.values())
    assert sheet.started.tokens == sum(row.tokens for row in sheet.fates.values())
    reasons = list(left_out.values())
    for fate in ("no_samples", "unscored", "truncated", "overlong", "untrainable"):
        assert sheet.fates.get(fate, SheetRow()).rollouts == reasons.count(fate)
    trained = sheet.fates.get("trained", SheetRow())
    assert trained == SheetRow(
        rollouts=len(set(batch.entries.sequence_E.tolist())), tokens=len(batch.entries)
    )
    zero = sheet.fates.get("zero_advantage", SheetRow())
    assert zero.rollouts == 0 or not trains_without_advantage(algorithm)

    # What is context is counted by its reason, of rollouts that are trained or would have been.
    numbers = set(batch.entries.sequence_E.tolist())
    inside = [r for r in rollouts if r.rollout not in left_out]
    context = [
        row
        for r in rollouts
        if left_out.get(r.rollout, "untrainable") == "untrainable"
        for row in r.samples
        if row.untrainable is not None
    ]
    for reason in ("greedy", "constraint"):
        rows = [row for row in context if row.untrainable.reason == reason]
        told = sheet.context.get(reason, ContextRow())
        assert told.samples <= len(rows) and told.tokens <= sampled_tokens(rows)
        if not zero.rollouts:
            assert told == ContextRow(samples=len(rows), tokens=sampled_tokens(rows))
    if len(numbers) == len(inside):
        assert trained.tokens == sum(sampled_tokens(trainable(r)) for r in inside)

    count = algorithm.zero_advantage == "count"
    counted = sum(sampled_tokens(trainable(r)) for r in inside)
    divisor = {
        "token_mean": counted if count else trained.tokens,
        "sequence_mean": trained.rollouts + count * zero.rollouts,
        "constant": 7 * (trained.rollouts + count * zero.rollouts),
    }
    kind = algorithm.aggregation.kind
    if divisor.get(kind):
        assert batch.normalizer == divisor[kind]
    if kind == "group_mean" and count:
        kept = [any(r.rollout not in left_out for r in group.rollouts) for group in groups]
        assert batch.normalizer == max(1, sum(kept))
    # Weights of a group or a sequence, all counted, sum to one each: never above the divisor.
    if kind in ("sequence_mean", "group_mean"):
        assert batch.entries.weight_E.sum() <= batch.normalizer * (1 + 1e-5)
        if not count and trained.rollouts:
            assert batch.entries.weight_E.sum() == pytest.approx(batch.normalizer, rel=1e-5)


@settings(max_examples=150, deadline=None)
@given(group_rows(), st.sampled_from([None, 5]))
def test_the_books_always_balance_and_every_entry_is_its_sampled_id(
    groups: list[GroupRow], max_length: int | None
) -> None:
    batch = build_batch(groups, max_length=max_length)
    rollouts = [r for group in groups for r in group.rollouts]
    assert batch.sheet.started.rollouts == len(rollouts) + sum(group.failed for group in groups)
    assert batch.sheet.started.tokens == sum(len(s.completion_ids) for r in rollouts for s in r.samples)
    trained = batch.sheet.fates.get("trained", SheetRow())
    assert trained.tokens == len(batch.entries)
    assert np.all(batch.entries.advantage_E != 0)
    # The ids under the entries are the sampled ids of the trained rollouts, sample by sample, in order.
    spelled = iter(batch.tree.tokens_T[batch.entries.token_E].tolist())
    logprobs = iter(batch.entries.logprob_E.tolist())
    for row in [s for r in trained_rollouts(groups, max_length) for s in trainable(r)]:
        assert [next(spelled) for _ in row.completion_ids] == list(row.completion_ids)
        assert [next(logprobs) for _ in row.completion_ids] == list(row.completion_logprobs)
    assert next(spelled, None) is None


def trained_rollouts(groups: list[GroupRow], max_length: int | None) -> list[RolloutRow]:
    """By the definition: scored, sampled from a known distribution, not overlong, not of the mean reward."""
    trained = []
    for group in groups:
        rewards = [r.reward for r in group.rollouts if r.reward is not None]
        for r in group.rollouts:
            fits = max_length is None or all(
                len(s.prompt_ids) + len(s.completion_ids) <= max_length for s in trainable(r)
            )
            sampled = any(s.completion_ids for s in trainable(r))
            if r.reward is not None and sampled and fits and abs(r.reward - np.mean(rewards)) > 1e-9:
                trained.append(r)
    return trained

from __future__ import annotations

import pytest

import art
from art.client.requests.train_outcome import (
    DivergenceWatch,
    warn_context_only,
    warn_identical,
    warn_one_seed,
    warn_rate,
    warn_untrained,
)
from art.client.requests.train_request import train_groups
from art.types import TrainConfig
from art.wire.jobs import IDENTICAL, ONE_SEED_GROUPS, BalanceSheet, TrainResultInfo
from art.wire.rollout_record import ContextRow, SheetRow
from art.wire.training import RATE_BY_SIZE


def sheet(**fates: int) -> BalanceSheet:
    return BalanceSheet(
        started=SheetRow(rollouts=sum(fates.values())),
        fates={name: SheetRow(rollouts=count) for name, count in fates.items()},
    )


@pytest.mark.parametrize(
    ("fates", "told"),
    [
        ({"no_samples": 2}, "step 4 of agent trained nothing: 2 no_samples (no reply to learn from: append"),
        (
            {"zero_advantage": 6, "failed": 1},
            "6 zero_advantage (all rewards in each group are equal, so there is no gradient); 1 failed",
        ),
        ({"of_a_newer_server": 1}, "1 of_a_newer_server (of_a_newer_server)"),
        ({}, "there were no rollouts"),
    ],
)
def test_a_step_that_trained_nothing_says_why(fates, told, caplog):
    warn_untrained(sheet(**fates), "agent", 4)
    assert told in caplog.text


def test_a_step_that_trained_says_nothing(caplog):
    warn_untrained(sheet(trained=1, zero_advantage=5), "agent", 4)
    assert not caplog.records


def test_samples_that_are_context_are_told_once_for_each_model_and_reason(caplog):
    told: set[tuple[str, str]] = set()
    greedy, penalised = ContextRow(samples=3, tokens=40), ContextRow(samples=1, tokens=2)
    warn_context_only(BalanceSheet(context={"greedy": greedy}), "agent", 4, told)
    assert "step 4 of agent: 3 samples (40 tokens) are context" in caplog.text
    assert "drawn greedily (temperature 0" in caplog.text and "a temperature above 0" in caplog.text
    warn_context_only(BalanceSheet(context={"greedy": greedy, "constraint": penalised}), "agent", 5, told)
    warn_context_only(BalanceSheet(context={"greedy": greedy}), "other", 1, told)
    assert [record.getMessage().partition(" are ")[0] for record in caplog.records] == [
        "step 4 of agent: 3 samples (40 tokens)",
        "step 5 of agent: 1 samples (2 tokens)",
        "step 1 of other: 3 samples (40 tokens)",
    ]


def test_one_seed_for_a_whole_group_is_told_once_for_each_model(caplog):
    told: set[str] = set()
    for model, metrics in (
        ("agent", {}),
        ("agent", {ONE_SEED_GROUPS: 2.0}),
        ("agent", {ONE_SEED_GROUPS: 1.0}),
    ):
        warn_one_seed(metrics, model, 4, told)
    (record,) = caplog.records
    assert "step 4 of agent: 2 groups have one `seed` for all their rollouts" in record.getMessage()


def test_a_step_of_rollouts_that_cancel_out_is_told_once_for_each_model(caplog):
    told: set[str] = set()
    for trained, identical in ((6, 2.0), (6, 6.0), (4, 4.0)):
        warn_identical(sheet(trained=trained), {IDENTICAL: identical}, "agent", 4, told)
    warn_identical(sheet(zero_advantage=2), {}, "other", 4, told)
    (record,) = caplog.records
    assert "step 4 of agent learned nothing: its 6 trained rollouts sampled the same" in record.getMessage()


def test_a_rate_far_below_the_one_for_the_size_is_told_once_a_model(caplog):
    told: set[str] = set()
    for model in ("agent", "agent", "other"):
        warn_rate(TrainConfig().learning_rate, {RATE_BY_SIZE: 4.9e-4}, model, told)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" is ")[0] for line in lines] == [
        "the learning rate of agent",
        "the learning rate of other",
    ]
    assert "5e-06, 98 times below the 0.00049" in lines[0] and "learning_rate=None" in lines[0]


def test_a_rate_far_above_the_one_for_the_size_is_told_before_it_destroys_more(caplog):
    warn_rate(1.0, {RATE_BY_SIZE: 6.5e-4}, "agent", set())
    assert "the learning rate of agent is 1, 1538 times above the 0.00065" in caplog.text
    assert "one step may destroy the model" in caplog.text


def test_groups_of_one_rollout_are_told_the_least_size(caplog):
    alone = train_groups([group(1.0), group(0.0)])
    warn_untrained(sheet(zero_advantage=2), "agent", 4, alone)
    assert "The group size must be at least 2" in caplog.text
    caplog.clear()
    warn_untrained(sheet(no_samples=2), "agent", 4, alone)  # advantages without groups: another cause
    assert "no reply to learn from" in caplog.text
    assert "let the agent of art.rollout use its base_url" in caplog.text


def group(*rewards: float) -> art.TrajectoryGroup:
    return art.TrajectoryGroup([art.Trajectory(reward=reward) for reward in rewards])


GOOD = [group(1.0, -1.0, 0.0), group(-1.0, 1.0), group(0.0, 1.0), group(-1.0, 1.0)]
LOST = [group(-1.0, -1.0, -1.0), group(-1.0, -1.0), group(-1.0, -1.0), group(-1.0, -1.0)]
WON = [group(1.0, 1.0, 1.0), group(1.0, 1.0), group(1.0, 1.0), group(1.0, 1.0)]
SPARSE = [group(-1.0, 1.0), *(group(-1.0, -1.0) for _ in range(3))]
MIXED = [group(-1.0, -1.0), group(-1.0, -0.5), group(-1.0, -1.0), group(-1.0, -1.0)]


def steps_of(*told: tuple[list[art.TrajectoryGroup], dict[str, float]]) -> DivergenceWatch:
    watch = DivergenceWatch()
    for step, (groups, metrics) in enumerate(told, 1):
        rates = {"loss/learning_rate": 1.0, RATE_BY_SIZE: 6.5e-4} if metrics else {}
        info = TrainResultInfo.model_construct(step=step, metrics=metrics | rates)
        watch.warn(info, train_groups(groups), "agent")
    return watch


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (
            [(GOOD, {"loss/entropy": 0.8}), (LOST, {})],
            "after step 1 each reward is the lowest (-1), in all groups",
        ),
        (
            [(GOOD, {"loss/entropy": 0.8}), (MIXED, {"loss/entropy": 5.1})],
            "the entropy rose from 0.8 to 5.1 nats a token, and the reward fell",
        ),
        (
            [(GOOD, {"loss/entropy": 0.8}), (MIXED, {"loss/entropy": 0.001})],
            "the entropy fell from 0.8 to 0.001 nats a token, and so did the reward",
        ),
        (
            [(GOOD, {"loss/entropy": 0.8}), (MIXED, {"loss/entropy": 0.7, "loss/kl_policy_ref": 3.0})],
            "the KL to the reference is 3 nats a token, and the reward fell",
        ),
    ],
)
def test_a_step_that_destroyed_the_policy_is_told_once_with_cause_and_remedy(steps, told, caplog):
    steps_of(*steps, steps[-1])
    (record,) = caplog.records
    line = record.getMessage()
    assert line.startswith(f"step 2 of agent: {told}. The policy has diverged.") and "\n" not in line
    assert "it was 1, the literature gives 0.00065" in line and "lower learning_rate" in line
    assert "fork_checkpoint" not in line, "no step before it was good"


def test_the_step_before_the_destroyed_one_is_named(caplog):
    steps_of((GOOD, {"loss/entropy": 0.8}), (GOOD, {"loss/entropy": 0.7}), (LOST, {}))
    assert "`await backend.fork_checkpoint(new, 'agent', not_after_step=1)`" in caplog.text


@pytest.mark.parametrize(
    "steps",
    [
        [(GOOD, {"loss/entropy": 0.8}), (WON, {})],
        [(SPARSE, {"loss/entropy": 0.8}), (LOST, {})],
        [(GOOD, {"loss/entropy": 0.8}), (LOST[:1], {})],
        [(LOST, {}), (LOST, {})],
        [(MIXED, {"loss/entropy": 0.8}), (GOOD, {"loss/entropy": 0.01})],
        [(GOOD, {"loss/entropy": 0.8}), (MIXED, {"loss/entropy": 0.6})],
    ],
)
def test_a_solved_a_sparse_or_an_unlucky_batch_is_no_divergence(steps, caplog):
    steps_of(*steps)
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize("given", [4.9e-4, 5e-3, 2e-2, 5e-5, 2.5e-5, None])
def test_a_rate_that_is_near_or_above_or_chosen_by_the_size_is_not_told(given, caplog):
    warn_rate(given, {RATE_BY_SIZE: 4.9e-4}, "agent", set())
    warn_rate(1e-9, {}, "agent", set())  # an older server does not say
    assert not caplog.records

from __future__ import annotations

import logging

import pytest

import art
from art.tracking.step_lines import log_sft_step, log_step
from art.types import Unscored
from art.wire.jobs import BalanceSheet, part_metric
from art.wire.rollout_record import SheetRow


def group(*rewards: float | Unscored, failed: int = 0) -> art.TrajectoryGroup:
    errors = [ValueError("x") for _ in range(failed)]
    return art.TrajectoryGroup([*(art.Trajectory(reward=reward) for reward in rewards), *errors])


def sheet(**fates: tuple[int, int]) -> BalanceSheet:
    rows = {name: SheetRow(rollouts=rollouts, tokens=tokens) for name, (rollouts, tokens) in fates.items()}
    started = SheetRow(
        rollouts=sum(row.rollouts for row in rows.values()), tokens=sum(row.tokens for row in rows.values())
    )
    return BalanceSheet(started=started, fates=rows)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "art")
    return caplog


def test_the_line_of_a_step(lines):
    groups = [group(1.0, 0.0), group(1.0, 1.0), group(0.0, 1.0, failed=1), group(failed=2), None]
    fates = sheet(trained=(4, 11688), zero_advantage=(2, 5), failed=(3, 0), stale=(1, 3))
    log_step(
        "agent",
        3,
        groups,
        [group(0.5, 0.5), group(0.0, 1.0)],
        fates,
        metrics={},
        training_s=4.06,
        step_s=14.2,
    )
    assert lines.messages == [
        "step 3 of agent: reward 0.667 ± 0.17, 2 of 6 groups trained (2 with equal rewards, 1 failed, "
        "1 sorted out), rollouts: 3 failed, 1 sampled too many steps ago, 11,688 tokens, 14.2 s (4.1 s of it "
        "training)"
    ]


def test_the_error_of_one_group_is_that_of_its_rollouts_and_one_rollout_has_none(lines):
    everything = sheet(trained=(4, 8))
    log_step("a", 1, [group(0.0, 0.0, 1.0, 1.0)], [], everything, metrics={}, training_s=1.0, step_s=None)
    log_step("a", 2, [group(2.0)], [], everything, metrics={}, training_s=1.0, step_s=None)
    assert lines.messages == [
        "step 1 of a: reward 0.5 ± 0.29, 1 of 1 groups trained, 8 tokens, 1.0 s",
        "step 2 of a: reward 2, 1 of 1 groups trained, 8 tokens, 1.0 s",
    ]


def test_a_step_that_trained_nothing_says_so(lines):
    groups = [group(Unscored("judge"), Unscored("judge")), group(1.0, 1.0)]
    fates = sheet(unscored=(2, 9), zero_advantage=(2, 9))
    log_step("a", 1, groups, [], fates, metrics={}, training_s=1.0, step_s=None)
    assert lines.messages == [
        "step 1 of a: reward 1 ± 0, 0 of 2 groups trained (1 without a reward, 1 with equal rewards), "
        "rollouts: 2 without a reward, 0 tokens, 1.0 s"
    ]


def test_equal_rewards_that_are_trained_are_not_called_dropped(lines):
    log_step("a", 1, [group(1.0, 1.0)], [], sheet(trained=(2, 8)), metrics={}, training_s=1.0, step_s=None)
    assert "1 of 1 groups trained, 8 tokens" in lines.messages[0]


def test_the_line_of_a_supervised_step(lines):
    log_sft_step("a", 1, 120, {"loss/train": 1.234}, sheet(trained=(120, 3400)), 4.06)
    assert lines.messages == ["step 1 of a: 120 conversations, 3,400 tokens, loss 1.23, 4.1 s"]


def test_the_parts_of_a_step_are_named_the_longest_first_and_crumbs_are_not(lines):
    seconds = {"sampling": 8.9, "gradient": 4.1, "save": 0.55, "canary": 0.0, "queue": 0.01}
    metrics = {part_metric(part): value for part, value in seconds.items()}
    fates = sheet(trained=(4, 8))
    log_step("a", 2, [group(0.0, 1.0)], [], fates, metrics=metrics, training_s=4.9, step_s=14.2)
    log_step("a", 1, [group(0.0, 1.0)], [], fates, metrics=metrics, training_s=4.9, step_s=None)
    assert [line.partition("8 tokens, ")[2] for line in lines.messages] == [
        "14.2 s (sampling 8.9, gradient 4.1, save 0.6)",
        "13.6 s (sampling 8.9, gradient 4.1, save 0.6)",
    ]

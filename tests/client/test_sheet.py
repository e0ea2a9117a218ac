from __future__ import annotations

import pytest

from art.client.train_request import warn_context_only, warn_low_rate, warn_untrained
from art.types import TrainConfig
from art.wire.jobs import BalanceSheet, ContextRow, SheetRow
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
            "6 zero_advantage (its reward is that of its whole group); 1 failed",
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
    warn_context_only(BalanceSheet(context={"greedy": greedy, "penalties": penalised}), "agent", 5, told)
    warn_context_only(BalanceSheet(context={"greedy": greedy}), "other", 1, told)
    assert [record.getMessage().partition(" are ")[0] for record in caplog.records] == [
        "step 4 of agent: 3 samples (40 tokens)",
        "step 5 of agent: 1 samples (2 tokens)",
        "step 1 of other: 3 samples (40 tokens)",
    ]


def test_a_rate_far_below_the_one_for_the_size_is_told_once_a_model(caplog):
    told: set[str] = set()
    for model in ("agent", "agent", "other"):
        warn_low_rate(TrainConfig().learning_rate, {RATE_BY_SIZE: 4.9e-4}, model, told)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" is ")[0] for line in lines] == [
        "the learning rate of agent",
        "the learning rate of other",
    ]
    assert "5e-06, 98 times below the 0.00049" in lines[0] and "learning_rate=None" in lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("given", [4.9e-4, 5e-3, 5e-5, 2.5e-5, None])
def test_a_rate_that_is_near_or_above_or_chosen_by_the_size_is_not_told(given, caplog):
    warn_low_rate(given, {RATE_BY_SIZE: 4.9e-4}, "agent", set())
    warn_low_rate(1e-9, {}, "agent", set())  # an older server does not say
    assert not caplog.records

from __future__ import annotations

import pytest

from art.remote.sheet import tell_untrained
from art.wire.jobs import BalanceSheet, SheetRow


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
    tell_untrained(sheet(**fates), "agent", 4)
    assert told in caplog.text


def test_a_step_that_trained_says_nothing(caplog):
    tell_untrained(sheet(trained=1, zero_advantage=5), "agent", 4)
    assert not caplog.records

"""A server of a later release tells more; what this client knows of it is read."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from art.wire.jobs import BalanceSheet, JobEvent, TrainResultInfo
from art.wire.records import read_reply
from art.wire.rollout_record import SheetRow

SHEET = BalanceSheet(
    started=SheetRow(rollouts=2, tokens=9), fates={"trained": SheetRow(rollouts=2, tokens=9)}
)
RESULT = JobEvent(number=1, type="result", result=TrainResultInfo(step=1, metrics={}, sheet=SHEET))


def test_fields_that_only_a_newer_server_knows_are_left_out() -> None:
    newer = (
        RESULT.model_dump_json()
        .replace('"rollouts"', '"groups":1,"rollouts"')
        .replace('"forks"', '"by_kind":{"forks":[]},"forks"')
    )
    with pytest.raises(ValidationError):
        JobEvent.model_validate_json(newer)
    assert read_reply(JobEvent, newer) == read_reply(JobEvent, RESULT.model_dump_json()) == RESULT


def test_what_is_wrong_beside_them_is_told() -> None:
    wrong = RESULT.model_dump_json().replace('"rollouts":2', '"groups":1,"rollouts":"two"')
    with pytest.raises(ValidationError, match="valid integer"):
        read_reply(JobEvent, wrong)

from __future__ import annotations

import logging

import pytest

from art.process.failures import ForgivenFailures
from art.trajectories import PydanticException


def raised(message: str, kind: type[Exception] = LookupError) -> Exception:
    try:
        raise kind(message)
    except kind as error:
        return error


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "art")
    return caplog


def test_the_first_of_a_kind_is_logged_with_its_traceback_and_all_are_counted(warnings):
    def elsewhere() -> Exception:
        try:
            raise LookupError("another place")
        except LookupError as error:
            return error

    failures = ForgivenFailures()
    for error in (raised("no such row"), raised("nor this"), elsewhere(), raised("x", OverflowError)):
        failures.add(error)
    first = [record.getMessage() for record in warnings.records]
    assert len(first) == 3 and all("Traceback (most recent call last)" in text for text in first)
    assert "LookupError: no such row" in first[0] and "another place" in first[1]
    assert "OverflowError" in first[2]
    warnings.clear()
    failures.log_count(40)
    assert warnings.messages == [
        "4 of 40 rollouts failed and are left out: 3 LookupError (no such row), 1 OverflowError (x)"
    ]


def test_a_kind_that_was_seen_is_only_counted_and_nothing_is_no_line(warnings):
    for rollouts in (8, 9):
        failures = ForgivenFailures()
        failures.add(raised("the same", BufferError))
        failures.log_count(rollouts)
        failures.log_count(rollouts)
    messages = [message.splitlines()[0] for message in warnings.messages]
    assert len(messages) == 3 and messages[0].startswith(
        "a rollout failed and is left out: BufferError: the same"
    )
    assert messages[1:] == [
        f"1 of {rollouts} rollouts failed and are left out: 1 BufferError (the same)" for rollouts in (8, 9)
    ]


def test_the_record_of_an_exception_counts_like_one(warnings):
    failures = ForgivenFailures()
    failures.add(PydanticException.from_exception(raised("m" * 900, ArithmeticError)))
    failures.add(PydanticException.from_exception(raised("n" * 900, ArithmeticError)))
    failures.log_count(7)
    first, count = warnings.messages
    assert "in raised" in first and count.startswith("2 of 7 rollouts") and "2 ArithmeticError (mmm" in count
    assert "m" * 201 not in count

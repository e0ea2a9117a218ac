"""Errors of ours: what they say, however large the values are that they are about."""

from __future__ import annotations

import pytest

from art.errors import ARTError, ConfigurationError, DiskError, RequestError, cut_message


@pytest.mark.parametrize(
    "kind", [ARTError, ConfigurationError, DiskError, lambda text: RequestError(text, status=400)]
)
def test_a_message_of_any_length_keeps_its_beginning_and_its_end(kind: type[ARTError]) -> None:
    error = kind(f"role {'x' * 1_000_000} is unknown; known: user")
    assert len(str(error)) < 20_000 and error.detail == str(error)
    assert error.detail.startswith("role xxx") and error.detail.endswith("xxx is unknown; known: user")


def test_a_short_message_stays_as_it_is() -> None:
    assert str(ARTError("no key", 401)) == "no key" == cut_message("no key", 6)
    assert ARTError(404).args == (404,) and ARTError().detail == ""

"""Likeness of texts by their words."""

from __future__ import annotations

import sys

import pytest

from art.errors import ConfigurationError
from art_extensions.scenarios.likeness import likeness, spelling_likeness, words


def test_words_are_lower_case_and_keep_what_is_inside_them() -> None:
    assert words("At 17:40, the A-team paid 3.50!") == ["at", "17:40", "the", "a-team", "paid", "3.50"]


def test_the_order_of_words_is_no_difference_and_other_words_are() -> None:
    assert likeness("From Oslo to Rome", "from Rome, to Oslo") == 1.0
    assert 0 < likeness("the weather in Oslo", "the weather in Rome") < 1
    assert likeness("", "anything") == 0


def test_letters_of_one_word() -> None:
    assert spelling_likeness("forecast", "forecasts") > 0.9 > spelling_likeness("forecast", "tides")


def test_without_rapidfuzz_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[autorl\]"):
        likeness("a b", "b a")

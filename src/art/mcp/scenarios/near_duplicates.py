"""Which tasks say the same in other words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from art.mcp.scenarios.planned import PlannedScenario
from art.runs.likeness import likeness, spelling_likeness, words

SIMILARITY = 0.95
"""Of the sorted words of two tasks, by which two long texts with a changed word or two are one task."""
SAME_WORD = 0.8
"""Likeness of letters from which a word is another form of a word: forecast, forecasts."""
FILLER = frozenset(
    (
        "a an and any are as at be been by can could do does for from get give had has have i in into is "
        "it its just kindly let me my need of on or our please provide show tell that the their them then "
        "there these this those to up us want was we were what what's which will with would you your"
    ).split()
)


def near_duplicate(
    scenario: PlannedScenario, others: Iterable[PlannedScenario], *, similarity: float = SIMILARITY
) -> PlannedScenario | None:
    """The first of the others that is the same task, or None.

    Two tasks are the same when, without filler and forms of one word, they have the same words, or when they
    are alike to `similarity` (0 to 1, by their words) and no name or number sets them apart.
    Plans of which neither has all calls of the other set apart tasks with other words, or in another order.
    """
    return next((other for other in others if same_task(scenario, other, similarity)), None)


def same_task(one: PlannedScenario, two: PlannedScenario, similarity: float) -> bool:
    """The rule of `near_duplicate` for two tasks. Raises ConfigurationError without rapidfuzz."""
    first_calls, second_calls = one.plan_calls, two.plan_calls
    if not (first_calls <= second_calls or second_calls <= first_calls):
        # Other arguments, other task: "from Oslo to Rome" and "from Rome to Oslo". What says the same in the
        # same order is one task, however it is planned.
        return content_words(one.task) == content_words(two.task)
    apart = set_apart(one.task, two.task)
    if not apart:
        return True
    if any(is_name(word, text) for word in apart for text in (one.task, two.task)):
        return False
    return likeness(one.task, two.task) >= similarity


def content_words(text: str) -> list[str]:
    """The words without filler, in their order."""
    return [word for word in words(text) if word not in FILLER]


def set_apart(one: str, two: str) -> set[str]:
    """Words of either task that the other has in no form, without filler."""
    first, second = set(content_words(one)), set(content_words(two))
    only_first, only_second = first - second, second - first
    return {word for word in only_first if not in_another_form(word, only_second)} | {
        word for word in only_second if not in_another_form(word, only_first)
    }


def in_another_form(word: str, others: Iterable[str]) -> bool:
    plain = [other for other in others if word[:3] == other[:3] and word.isalpha() and other.isalpha()]
    return any(spelling_likeness(word, other) >= SAME_WORD for other in plain)


def is_name(word: str, text: str) -> bool:
    """Whether the word is a number, or written with a capital inside the text: a name."""
    if any(letter.isdigit() for letter in word):
        return True
    found = re.search(rf"(?<=\w[\s,;]){re.escape(word)}\b", text, re.IGNORECASE)
    return found is not None and found[0][:1].isupper()

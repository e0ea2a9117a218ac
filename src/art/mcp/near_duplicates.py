"""Which tasks say the same in other words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from art.mcp.planned import PlannedScenario

SIMILARITY = 0.95
"""Of the sorted words of two tasks, by which two long texts with a changed word or two are one task."""
SAME_WORD = 80.0
"""Percent of likeness from which a word is another form of a word: forecast, forecasts."""
WORD = re.compile(r"\w+(?:[.:-]\w+)*")
FILLER = frozenset(
    (
        "a an and any are as at be by can could do does for from get give have i in into is it its just "
        "kindly let me my need of on or our please provide show tell that the their them then there these "
        "this those to up us want was we were what what's which will with would you your"
    ).split()
)


def near_duplicate(
    scenario: PlannedScenario, others: Iterable[PlannedScenario], *, similarity: float = SIMILARITY
) -> PlannedScenario | None:
    """The first of the others that is the same task, or None.

    Two tasks are the same when, without filler and forms of one word, they have the same words, or when they
    are alike to `similarity` (0 to 1, of rapidfuzz's token_sort_ratio) and no name or number sets them apart.
    Plans with different calls set apart tasks that only one name or number does.
    """
    return next((other for other in others if same_task(scenario, other, similarity)), None)


def same_task(one: PlannedScenario, two: PlannedScenario, similarity: float) -> bool:
    from rapidfuzz import fuzz

    if one.plan and two.plan and one.plan_key != two.plan_key:
        # Other arguments, other task: "the forecast for Oslo" and "for Rome". Word for word the same is not.
        return " ".join(words(one.task)) == " ".join(words(two.task))
    apart = set_apart(one.task, two.task)
    if not apart:
        return True
    if any(is_name(word, text) for word in apart for text in (one.task, two.task)):
        return False
    first, second = (" ".join(words(text)) for text in (one.task, two.task))
    return fuzz.token_sort_ratio(first, second) >= 100 * similarity


def words(text: str) -> list[str]:
    """Lower-case words and numbers, without punctuation."""
    return WORD.findall(text.casefold())


def set_apart(one: str, two: str) -> set[str]:
    """Words of either task that the other has in no form, without filler."""
    first, second = set(words(one)) - FILLER, set(words(two)) - FILLER
    only_first, only_second = first - second, second - first
    return {word for word in only_first if not in_another_form(word, only_second)} | {
        word for word in only_second if not in_another_form(word, only_first)
    }


def in_another_form(word: str, others: Iterable[str]) -> bool:
    from rapidfuzz import fuzz

    plain = [other for other in others if word[:3] == other[:3] and word.isalpha() and other.isalpha()]
    return any(fuzz.ratio(word, other) >= SAME_WORD for other in plain)


def is_name(word: str, text: str) -> bool:
    """Whether the word is a number, or written with a capital inside the text: a name."""
    if any(letter.isdigit() for letter in word):
        return True
    found = re.search(rf"(?<=\w[\s,;]){re.escape(word)}\b", text, re.IGNORECASE)
    return found is not None and found[0][:1].isupper()

"""A judge's answer, read with care: scores go to the ids they name; only what can be meant as one counts."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from art.rewards.judging.plain import plain

SLACK = 0.1
"""A score this far outside of 0 to 1 is clamped; further out, another scale is meant, and it is no score."""
EXPLANATION_CHARS = 4000


@dataclass(frozen=True, kw_only=True)
class Given:
    """A score as the judge gave it, clamped."""

    score: float
    explanation: str = ""
    note: str = ""
    """What was done to it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What of an answer can be used."""

    given: dict[str, Given] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Ids that were asked about and have no usable score, with what is wrong."""


def read_answer(answer: Any, wanted: Collection[str]) -> Answer:
    """The scores of the ids in `wanted`; entries about others are ignored, places mean nothing.

    Raises ValueError, which says what is wrong, where there is not one usable score.
    """
    given: dict[str, Given] = {}
    problems: dict[str, str] = {}
    for entry in _entries(answer):
        identity = str(entry.get("trajectory_id", "")).strip()
        if identity not in wanted:
            continue
        one = _given(entry)
        if isinstance(one, str):
            problems[identity] = one
        elif identity in given and given[identity].score != one.score:
            problems[identity] = f"it has two scores, {given[identity].score:g} and {one.score:g}"
        else:
            given[identity] = one
    kept = {identity: one for identity, one in given.items() if identity not in problems}
    lacking = {i: problems.get(i, "it has no score") for i in wanted if i not in kept}
    if not kept:
        told = "; ".join(f"{identity}: {problem}" for identity, problem in lacking.items())
        raise ValueError(f"no usable score for any trajectory ({told}); name them by these ids")
    return Answer(given=kept, problems=lacking)


def _entries(answer: Any) -> list[dict[str, Any]]:
    """Raises ValueError."""
    entries = answer.get("scores", [answer]) if isinstance(answer, dict) else answer
    if not isinstance(entries, list):
        raise ValueError('the answer must be {"scores": [...]}, a list with an entry for each trajectory')
    return [entry for entry in entries if isinstance(entry, dict)]


def _given(entry: dict[str, Any]) -> Given | str:
    """The score, or what is wrong with it."""
    value = _number(entry.get("score"))
    if value is None:
        return "its score is no number"
    if not -SLACK <= value <= 1 + SLACK:
        return f"its score {value:g} is not between 0 and 1"
    clamped = min(1.0, max(0.0, value))
    return Given(
        score=clamped,
        explanation=str(plain(entry.get("explanation") or ""))[:EXPLANATION_CHARS],
        note="" if clamped == value else f"the judge's score {value:g} counts as {clamped:g}",
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None

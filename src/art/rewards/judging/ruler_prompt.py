"""What RULER asks a judge: the instructions, the trajectories side by side, the form of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art.llm.request import Request
from art.rewards.judging.presentation import CAUTION, Exhibit, block

DEFAULT_RUBRIC = """\
- A trajectory that reaches its goal always scores clearly higher than one that does not.
- Of two that reach it, the one that gets there more efficiently, without unproductive detours, scores higher.
- If one is only slightly better than another, their scores differ little; if much better, they differ much.
- Progress towards a goal that was not reached may earn partial credit."""
"""What the judge goes by when no rubric is given."""

_TASK = (
    "All of the trajectories below have been given the same goal. Your job is to consider each of them and "
    "give them a score between 0 and 1. Take into consideration your best judgement of the agent's goal."
)
_FORM = (
    "Answer with one JSON object that has an entry for each trajectory that is asked about, named by its id: "
    '{"scores": [{"trajectory_id": "...", "explanation": "...", "score": 0.5}, ...]}'
)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which of the shown trajectories the judge is to score, by their ids."""

    shown: Exhibit
    wanted: Mapping[str, str]
    """Id -> what was wrong with the score that it gave before, if it was asked before."""
    known: Mapping[str, float] = field(default_factory=dict)
    """Scores of others that are shown: the scale to keep to."""


def request(question: Question, rubric: str, *, salt: str = "") -> Request:
    """The question as it is sent."""
    return Request(
        messages=(
            {"role": "system", "content": instructions(rubric)},
            {"role": "user", "content": user_text(question)},
        ),
        schema=schema(list(question.wanted)),
        schema_name="scores",
        salt=salt,
    )


def instructions(rubric: str) -> str:
    """The system message. The rubric is the user's own, and trusted."""
    return f"{_TASK}\n\nGrading standards:\n{rubric.strip()}\n\n{CAUTION}\n\n{_FORM}"


def user_text(question: Question) -> str:
    """The trajectories; below them, where only some are asked about, which."""
    parts = [question.shown.text]
    if question.known:
        scored = [{"trajectory_id": i, "score": score} for i, score in question.known.items()]
        parts.append(block("already_scored", scored))
    if question.known or any(question.wanted.values()):
        needed = [
            {"trajectory_id": i} | ({"problem": problem} if problem else {})
            for i, problem in question.wanted.items()
        ]
        parts.append(block("scores_needed", needed))
        parts.append("Score only the trajectories under scores_needed, on the scale of those already scored.")
    return "\n\n".join(parts)


def schema(ids: Sequence[str]) -> dict[str, Any]:
    """The answer's JSON schema: no other ids can be named. Without bounds, which some providers refuse."""
    entry = {
        "type": "object",
        "properties": {
            "trajectory_id": {"type": "string", "enum": list(ids)},
            "explanation": {"type": "string"},
            "score": {"type": "number"},
        },
        "required": ["trajectory_id", "explanation", "score"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"scores": {"type": "array", "items": entry}},
        "required": ["scores"],
        "additionalProperties": False,
    }

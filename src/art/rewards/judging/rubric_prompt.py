"""What a rubric asks a judge about one trajectory, and how the answer is read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from art.llm.request import Request
from art.rewards.judging.criterion import Criterion
from art.rewards.judging.presentation import CAUTION, block, exhibit
from art.rewards.judging.ruler_answer import Answer, read_answer
from art.rewards.judging.view import View

STANDARDS = "Judge by each criterion on its own. 1: met in full; 0: not met at all; between them: in part."

_TASK = (
    "Below are the trajectory of an agent and a list of criteria. Your job is to give the trajectory a score "
    "between 0 and 1 by each criterion. Take into consideration your best judgement of the agent's goal."
)
_FORM = (
    'Answer with one JSON object, {"verdicts": [{"criterion": "...", "reason": "...", "score": 0.5}, ...]}: '
    "one entry for each criterion, named as in the list."
)


def rubric_request(
    view: View, criteria: Sequence[Criterion], *, standards: str = STANDARDS, salt: str = ""
) -> Request:
    """The question as it is sent; the criteria stand in the given order."""
    listed = block("criteria", [{"name": one.name, "description": one.description} for one in criteria])
    shown = exhibit([view], salt=salt)
    system = f"{_TASK}\n\nGrading standards:\n{standards.strip()}\n\n{CAUTION}\n\n{_FORM}"
    return Request(
        messages=(
            {"role": "system", "content": system},
            {"role": "user", "content": f"{listed}\n\n{shown.text}"},
        ),
        schema=_schema([one.name for one in criteria]),
        schema_name="verdicts",
        salt=salt,
    )


def read_verdicts(answer: Any, wanted: Collection[str]) -> Answer:
    """The scores and reasons by criterion. Raises ValueError where none can be used."""
    verdicts = answer.get("verdicts", [answer]) if isinstance(answer, dict) else answer
    if not isinstance(verdicts, list):
        raise ValueError('the answer must be {"verdicts": [...]}, a list with an entry for each criterion')
    entries = [
        {"trajectory_id": one.get("criterion"), "explanation": one.get("reason"), "score": one.get("score")}
        for one in verdicts
        if isinstance(one, dict)
    ]
    return read_answer({"scores": entries}, wanted)


def _schema(names: Sequence[str]) -> dict[str, Any]:
    entry = {
        "type": "object",
        "properties": {
            "criterion": {"type": "string", "enum": list(names)},
            "reason": {"type": "string"},
            "score": {"type": "number"},
        },
        "required": ["criterion", "reason", "score"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"verdicts": {"type": "array", "items": entry}},
        "required": ["verdicts"],
        "additionalProperties": False,
    }

"""What a tournament asks a judge about two trajectories, and how the answer is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from art.llm.request import Request
from art.rewards.judging.plain import plain
from art.rewards.judging.presentation import CAUTION, Exhibit
from art.rewards.judging.ruler_answer import EXPLANATION_CHARS

TIE = "tie"

_TASK = (
    "Both of the trajectories below have been given the same goal. Your job is to consider each of them and "
    "say which one is better. Take into consideration your best judgement of the agent's goal."
)
_FORM = (
    'Answer with one JSON object, {"explanation": "...", "winner": "..."}: the winner is the id of the '
    'better trajectory, or "tie" where neither is better.'
)


def pairwise_request(shown: Exhibit, rubric: str, *, salt: str = "") -> Request:
    """The question as it is sent."""
    system = f"{_TASK}\n\nGrading standards:\n{rubric.strip()}\n\n{CAUTION}\n\n{_FORM}"
    return Request(
        messages=({"role": "system", "content": system}, {"role": "user", "content": shown.text}),
        schema={
            "type": "object",
            "properties": {
                "explanation": {"type": "string"},
                "winner": {"type": "string", "enum": [*shown.ids, TIE]},
            },
            "required": ["explanation", "winner"],
            "additionalProperties": False,
        },
        schema_name="winner",
        salt=salt,
    )


def read_winner(answer: Any, ids: Sequence[str]) -> tuple[float, str]:
    """1 where the first of `ids` won, 0 where the second did, 0.5 for a tie; and why. Raises ValueError."""
    if not isinstance(answer, dict):
        raise ValueError('the answer must be {"explanation": "...", "winner": "..."}')
    winner = str(answer.get("winner", "")).strip()
    results = {ids[0]: 1.0, ids[1]: 0.0, TIE: 0.5}
    found = results.get(winner, results.get(winner.lower()))
    if found is None:
        raise ValueError(f"the winner {winner[:40]!r} is neither {ids[0]!r} nor {ids[1]!r} nor {TIE!r}")
    return found, str(plain(answer.get("explanation") or ""))[:EXPLANATION_CHARS]

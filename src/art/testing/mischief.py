"""How a model's endpoint misbehaves: what goes wrong with its answers, and how often."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, fields
from typing import Any

from art.errors import ConfigurationError

ON_THE_WIRE = ("hang", "slow", "cut", "busy", "fault", "refusal", "truncated")
IN_THE_ANSWER = ("too_few", "too_many", "wrong_ids", "wrong_order", "out_of_range", "prose")
KINDS = (*ON_THE_WIRE, *IN_THE_ANSWER)
OTHER_ID = "zzzzzz"


@dataclass(frozen=True, kw_only=True)
class Mischief:
    """The share of requests that meet each kind of trouble; the rest is answered well."""

    hang: float = 0.0
    """Never answered: the client's deadline is all there is."""
    slow: float = 0.0
    """Answered after `slow_seconds`."""
    cut: float = 0.0
    """The connection ends in the middle of the answer."""
    busy: float = 0.0
    """429 with `Retry-After: retry_after`."""
    fault: float = 0.0
    """500."""
    refusal: float = 0.0
    """It declines to answer."""
    truncated: float = 0.0
    """Half of the answer, finish_reason "length"."""
    too_few: float = 0.0
    """One entry of the answer's list is missing (of an answer without one: everything)."""
    too_many: float = 0.0
    """One entry too many, about an id that was never shown."""
    wrong_ids: float = 0.0
    """Entries named 1, 2, 3 ... instead of by their ids."""
    wrong_order: float = 0.0
    """The right entries, reversed."""
    out_of_range: float = 0.0
    """A score of 7 among the scores."""
    prose: float = 0.0
    """The right answer with words around it and in a fence."""
    slow_seconds: float = 0.3
    retry_after: float = 0.05
    """Seconds."""
    seed: int = 0

    def __post_init__(self) -> None:
        rates = {kind: getattr(self, kind) for kind in KINDS}
        for kind, rate in rates.items():
            if not 0 <= rate <= 1:
                raise ConfigurationError(f"Mischief({kind}={rate!r}): a rate is a share, 0 to 1.")
        if sum(rates.values()) > 1 + 1e-9:
            raise ConfigurationError(
                f"The rates of a Mischief add up to {sum(rates.values()):.3g}: at most 1."
            )

    @classmethod
    def everything(cls, rate: float, **others: Any) -> Mischief:
        """All kinds equally often, `rate` of the requests together; `others` are fields set otherwise."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(others) - set(known)):
            raise ConfigurationError(f"Mischief has no {unknown[0]!r}; known: {', '.join(known)}.")
        return cls(**(dict.fromkeys(KINDS, rate / len(KINDS)) | others))

    def sequence(self) -> random.Random:
        """The dice for one server's life."""
        return random.Random(self.seed)

    def draw(self, dice: random.Random) -> str | None:
        """The kind of trouble that the next request meets; None: no trouble."""
        place = dice.random()
        for kind in KINDS:
            place -= getattr(self, kind)
            if place < 0:
                return kind
        return None


def spoil(answer: Any, kind: str) -> Any:
    """A right answer, wrong in one way of `IN_THE_ANSWER`. Answers that are text stay as they are.

    >>> spoil({"winner": "abcdef"}, "wrong_ids")
    {'winner': '1'}
    """
    if not isinstance(answer, dict):
        return answer
    spoiled: dict[str, Any] = copy.deepcopy(answer)
    entries: list[Any] | None = next((value for value in spoiled.values() if isinstance(value, list)), None)
    if entries is None:
        return spoiled_choice(spoiled, kind)
    if kind == "too_few":
        entries[:1] = []
    elif kind == "too_many" and entries:
        entries.append(renamed(entries[-1], OTHER_ID))
    elif kind == "wrong_ids":
        entries[:] = [renamed(entry, str(index)) for index, entry in enumerate(entries, 1)]
    elif kind == "wrong_order":
        entries.reverse()
    elif kind == "out_of_range":
        entries[:1] = [
            {**entry, "score": 7.0} if isinstance(entry, dict) and "score" in entry else entry
            for entry in entries[:1]
        ]
    return spoiled


def spoiled_choice(answer: dict[str, Any], kind: str) -> dict[str, Any]:
    """The same for an answer without a list: a winner, a text."""
    if kind == "too_few":
        return {}
    if kind in {"too_many", "wrong_ids"} and "winner" in answer:
        return {**answer, "winner": "1" if kind == "wrong_ids" else OTHER_ID}
    return answer


def renamed(entry: Any, name: str) -> Any:
    """An entry of a list under another id; one without a name is repeated as it is."""
    if not isinstance(entry, dict):
        return entry
    return {key: name if key in {"trajectory_id", "criterion"} else value for key, value in entry.items()}

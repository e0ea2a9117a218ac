"""The record of a step's rollouts: one JSON object a line of `steps/NNNN/rollouts.jsonl` in a model's folder.

The server writes the file when it makes step NNNN, whole. From then on lines are added only: one that lacks
`fate` is an annotation, whose fields replace those of the rollout that it names. A line that is no JSON (its
writer was killed) is left out by `fold_lines`.

    {"rollout":"r-1","group":0,"place":0,"fate":"trained","reward":1.0,"advantage":0.5,"tokens":12,...}
    {"rollout":"r-1","judge":{"name":"second-opinion","words":"It invented a date."}}

The lines of a step add up to its balance sheet (`sum_of_lines`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from art.process.foreign_files import parse_json
from art.wire.quoting import writable
from art.wire.records import GrownRecord, Strict

ROLLOUT_FILE = "rollouts.jsonl"
CONTEXT_FATE = "context"
LONGEST_NAME, LONGEST_TEXT, MOST_PARTS = 200, 4_000, 64
LONGEST_REASONS, LONGEST_REASON = 16_000, 1_000
"""The characters of all reasons of a rollout's turns, and of one."""


def cut(text: object, longest: int) -> object:
    """Returns the text, or its beginning with the number of characters that were left out.

    >>> cut("abcdefghijklmnopqrstuvwxyz", 20)
    'abc ... (23 more)'
    """
    if not isinstance(text, str) or len(text) <= longest:
        return text
    shown = max(0, longest - 17)
    return f"{text[:shown]} ... ({len(text) - shown} more)"


def _finite_parts(values: object) -> object:
    """Keeps finite numbers, and at most so many: a figure that nobody can draw must not stop a step."""
    if not isinstance(values, dict):
        return values
    finite = ((name, float(value)) for name, value in values.items() if _is_finite(value))
    return {str(cut(name, LONGEST_NAME)): value for name, value in [*finite][:MOST_PARTS]}


def _short_reasons(values: object) -> object:
    if not isinstance(values, dict):
        return values
    longest = min(LONGEST_REASON, max(40, LONGEST_REASONS // max(1, len(values))))
    return {
        name: cut(writable(text), longest) if isinstance(text, str) else text for name, text in values.items()
    }


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf") and not math.isnan(value)


Name = Annotated[str, BeforeValidator(lambda text: cut(text, LONGEST_NAME))]
Text = Annotated[str, BeforeValidator(lambda text: cut(text, LONGEST_TEXT))]
Parts = Annotated[dict[str, float], BeforeValidator(_finite_parts)]
Reasons = Annotated[dict[str, str], BeforeValidator(_short_reasons)]


class ContextRow(Strict):
    """Samples that were not trained for one reason, and their sampled tokens."""

    samples: int = 0
    tokens: int = 0


class SheetRow(Strict):
    """Rollouts and sampled tokens that met one fate."""

    rollouts: int = 0
    tokens: int = 0


class RolloutFailure(Strict):
    """The exception that ended a rollout."""

    type: Name
    message: Text = ""


class JudgeNote(Strict):
    """The judgement behind a reward."""

    name: Name | None = None
    """The judge's model; several are joined by commas."""
    words: Text | None = None
    """Its explanation."""
    order: int | None = None
    """The rollout's place among those that the judge was shown, from 0; None: it was shown alone."""
    price_usd: float | None = None
    """Its share of what the questions about its group cost: the group's rollouts add up to that."""
    score: float | None = None
    """The judge's own, where the reward is made of more than that."""
    second: float | None = None
    """The score in a second opinion: shown in the reverse order, or by a hold-out."""
    question: Text | None = None
    """What the judge was told to look for: at the group's first rollout alone."""


class RolloutNotes(GrownRecord):
    """The part of a record that only the program knows which rolled out. Long texts are cut."""

    LATER: ClassVar[frozenset[str]] = frozenset({"turn_reasons"})

    scenario: Name | None = None
    """The id of the scenario."""
    reward_parts: Parts = Field(default_factory=dict)
    """The metrics of the trajectory."""
    judge: JudgeNote | None = None
    started_at: float | None = None
    """Seconds since the epoch."""
    seconds: float | None = None
    turn_reasons: Reasons = Field(default_factory=dict)
    """Sample -> why its turn earned what it did."""


class RolloutRecord(RolloutNotes):
    """One rollout of a training step. Fields of a later release are left out when it is read."""

    model_config = ConfigDict(extra="ignore")

    rollout: str
    """The name of the rollout in its job."""
    group: int
    """The index of its group in the job; discarded groups come after the others."""
    place: int
    """The index in its group; failed rollouts come after the others."""
    fate: str
    """A reason code of `art.wire.jobs.BalanceSheet`."""
    discarded: bool = False
    """Its group was left out by the program."""
    weight: float = 1.0
    """That of its group in the loss."""
    reward: float | None = None
    unscored_reason: Text | None = None
    failure: RolloutFailure | None = None
    advantage: float | None = None
    """The mean over its trained tokens; None where the trainer computes it, and where there is none."""
    tokens: int = 0
    """Sampled, those of `context` among them."""
    context: dict[str, ContextRow] = Field(default_factory=dict)
    """Samples that are not trained, by reason, of a rollout that is trained or would be."""
    policy_steps: tuple[int, int] | None = None
    """The oldest and the newest adapter that sampled it; None: the base model, or nothing was sampled."""
    forks: dict[str, int] = Field(default_factory=dict)
    """Prompts that did not extend the ids before them, by reason."""
    truncated: bool = False
    """Its last completion ended at the limit of tokens."""
    samples: list[str] = Field(default_factory=list)
    """The ids of its samples in the ledger, a turn each, in order."""
    turn_rewards: list[float | None] = Field(default_factory=list)
    """What each of these turns was given; empty: nothing was given to turns."""
    turn_returns: list[float | None] = Field(default_factory=list)
    """What each and the later ones earn, as the algorithm discounts it; empty: it has no returns of turns."""
    turn_advantages: list[float | None] = Field(default_factory=list)
    """The advantage of each; empty: not of turns, or computed by the trainer."""

    @property
    def turns(self) -> int:
        return len(self.samples)

    def by_sample(self, values: Sequence[float | None]) -> dict[str, float]:
        """Returns sample -> value, of values of its turns."""
        named = zip(self.samples, values, strict=False)  # an annotation may have fewer
        return {sample: value for sample, value in named if value is not None}

    def line(self) -> str:
        """Returns the line of the file, with its end. What is at its default is left out."""
        return self.model_dump_json(exclude_defaults=True) + "\n"


def fold_lines(lines: Iterable[str | bytes]) -> list[RolloutRecord]:
    """Returns the records in the order of their first lines, each with its annotations."""
    records: dict[tuple[str, str], dict[str, Any]] = {}
    annotations: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            found = parse_json(line)
        except ValueError:
            continue
        if not isinstance(found, dict):
            continue
        if "fate" in found:
            records.setdefault((str(found.get("group")), str(found.get("place"))), {}).update(found)
        else:
            annotations.setdefault(str(found.get("rollout")), {}).update(found)
    return [
        record
        for found in records.values()
        if (record := _readable(found | annotations.get(str(found.get("rollout")), {}))) is not None
    ]


def _readable(found: dict[str, Any]) -> RolloutRecord | None:
    try:
        return RolloutRecord.model_validate(found)
    except ValidationError:
        return None


def sum_of_lines(records: Iterable[RolloutRecord]) -> dict[str, SheetRow]:
    """Returns the fates of a balance sheet: rollouts and tokens by reason code.

    The tokens of a trained rollout that are context are booked as such, with no rollout.
    """
    fates: dict[str, SheetRow] = {}

    def book(fate: str, rollouts: int, tokens: int) -> None:
        row = fates.get(fate, SheetRow())
        fates[fate] = SheetRow(rollouts=row.rollouts + rollouts, tokens=row.tokens + tokens)

    for one in records:
        context = 0 if one.fate == "untrainable" else sum(row.tokens for row in one.context.values())
        book(one.fate, 1, one.tokens - context)
        if context:
            book(CONTEXT_FATE, 0, context)
    return fates

"""Before and after, side by side: the judge sees both sides' answers to an input as one group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art.autorl.estimate import Estimate
from art.autorl.rollout import answer_of
from art.rewards.reward import Reward
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored

EVEN = 1e-9
Measure = Callable[[Trajectory], float]
"""The true quality of an attempt, where somebody knows it."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """Means over the answers of one side."""

    answers: int
    failed: int
    """Attempts that ended with an error, which says nothing about the model."""
    judged: float | None
    """Mean score; None: nothing was judged."""
    measured: float | None
    """Mean of the true quality; None: nobody knows it."""
    answer_chars: float | None
    cut: float | None
    """Share of the answers that ended at `max_tokens`."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The model before and after its training: the same test inputs, the same seeds, one judgement."""

    before: Side
    after: Side
    judged: Estimate | None
    """Mean over the inputs of what the judge gives after, less before; None: not judged."""
    measured: Estimate | None
    """The same of the true quality."""
    wins: int
    """Inputs whose answers the judge scored higher after training, on average."""
    ties: int
    losses: int
    unjudged: int
    """Inputs without a verdict on both sides."""
    inputs: tuple[Mapping[str, Any], ...]
    """By input: `input`, one answer `before` and one `after`, and the judge's mean scores of all of them."""


async def compare(
    texts: Sequence[str],
    before: Sequence[Sequence[Trajectory]],
    after: Sequence[Sequence[Trajectory]],
    *,
    per_input: int,
    judge: Reward | None,
    measure: Measure | None,
) -> Comparison:
    """Judge both sides of each input in one group: scores mean something only beside each other.

    per_input: attempts that were asked for. judge: None judges nothing. Raises what the judge raises.
    """
    rows = [
        await _row(text, old, new, judge, measure)
        for text, old, new in zip(texts, before, after, strict=True)
    ]
    judged = _differences(rows, "judged")
    return Comparison(
        before=_side(before, rows, "before", per_input),
        after=_side(after, rows, "after", per_input),
        judged=Estimate.of(judged),
        measured=Estimate.of(_differences(rows, "measured")),
        wins=sum(one > EVEN for one in judged),
        ties=sum(abs(one) <= EVEN for one in judged),
        losses=sum(one < -EVEN for one in judged),
        unjudged=len(rows) - len(judged),
        inputs=tuple(rows),
    )


async def _row(
    text: str,
    old: Sequence[Trajectory],
    new: Sequence[Trajectory],
    judge: Reward | None,
    measure: Measure | None,
) -> dict[str, Any]:
    row: dict[str, Any] = {"input": text}
    for name, attempts in (("before", old), ("after", new)):
        row[name] = answer_of(attempts[0]) if attempts else None
        row[f"measured_{name}"] = mean([measure(one) for one in attempts]) if measure is not None else None
        row[f"judged_{name}"] = None
    if judge is not None and old and new:
        group = await judge.score_group(TrajectoryGroup([*old, *new], metadata={"input": text}))
        scores = [None if isinstance(one.reward, Unscored) else one.reward for one in group]
        row["judged_before"], row["judged_after"] = mean(scores[: len(old)]), mean(scores[len(old) :])
    return row


def _differences(rows: Sequence[Mapping[str, Any]], what: str) -> list[float]:
    both = [(row[f"{what}_before"], row[f"{what}_after"]) for row in rows]
    return [new - old for old, new in both if old is not None and new is not None]


def _side(
    attempts: Sequence[Sequence[Trajectory]], rows: Sequence[Mapping[str, Any]], name: str, per_input: int
) -> Side:
    flat = [one for row in attempts for one in row]
    known = [row for row in rows if row["judged_before"] is not None and row["judged_after"] is not None]
    return Side(
        answers=len(flat),
        failed=per_input * len(attempts) - len(flat),
        judged=mean([row[f"judged_{name}"] for row in known]),
        measured=mean([row[f"measured_{name}"] for row in rows]),
        answer_chars=mean([float(one.metrics["answer_chars"]) for one in flat]),
        cut=mean([float(one.metrics["cut"]) for one in flat]),
    )


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known; None when none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

"""Where the seconds of a run's steps went: a picture of all steps, and the tree of one.

    step wall
      client  sampling
      training job
        queue  prepare  gradient
        promote
          save  canary  load

A part lies inside the one above it, and no second is in two parts of one level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from art.wire.jobs import STEP_PARTS, StepPart, part_metric
from art_extensions.ui.run_files import RunFiles

WALL, TRAINER = "time/step_wall_s", "time/step_trainer_s"
NESTED: Mapping[str, tuple[str, ...]] = {
    "step wall": ("client", "sampling", "training job"),
    "training job": ("queue", "prepare", "gradient", "promote"),
    "promote": ("save", "canary", "load"),
}
"""What lies inside what. The others are parts as the server measured them (`STEP_PARTS`)."""
LEAST_REST = 0.01
"""Share of the wall clock from which on seconds of no part are shown."""


@dataclass(frozen=True)
class NestedSeconds:
    """One part of a step's time as the page draws it."""

    name: str
    depth: int
    seconds: float
    start: float
    """Seconds of the parts before it."""


def nested_seconds(row: Mapping[str, float]) -> list[NestedSeconds]:
    """Returns the parts of a step's time from its row of the history, each below the one that holds it.

    >>> row = {"time/step_wall_s": 4.5, "time/step_client_s": 0.5, "time/step_gradient_s": 3.0}
    >>> [(one.name, one.depth, one.seconds, one.start) for one in nested_seconds(row)]  # doctest: +ELLIPSIS
    [('step wall', 0, 4.5, 0.0), ('client', 1, 0.5, 0.0), ('training job', 1, 3.0, 0.5), ('gradient', 2, ...]
    """
    measured: dict[str, float] = {part: seconds for part, seconds in _parts_of(row).items() if seconds}
    if not measured and (trainer := row.get(TRAINER, 0.0)) > 0:  # a backend that measures no more
        measured["training job"] = trainer
    inside = _inside("step wall", measured)
    wall = max(row.get(WALL, 0.0), inside)
    if not wall:
        return []
    parts = [NestedSeconds("step wall", 0, wall, 0.0), *_place("step wall", measured, 1, 0.0)]
    if inside and wall - inside > LEAST_REST * wall:
        parts.append(NestedSeconds("not measured", 1, wall - inside, inside))
    return parts


def overlapping_seconds(row: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns the other times of a step, the longest first: what they measure lies in the parts as well."""
    known = {WALL, *map(part_metric, STEP_PARTS)}
    found = [
        (name.removeprefix("time/").removesuffix("_s").replace("_", " "), value)
        for name, value in row.items()
        if name.startswith("time/") and name.endswith("_s") and "/cum/" not in name and name not in known
    ]
    return sorted(found, key=lambda one: -one[1])


def _inside(name: str, measured: Mapping[str, float]) -> float:
    if name not in NESTED or name in measured:
        return measured.get(name, 0.0)
    return sum(_inside(part, measured) for part in NESTED[name])


def _place(parent: str, measured: Mapping[str, float], depth: int, start: float) -> Iterator[NestedSeconds]:
    for name in NESTED[parent]:
        if seconds := _inside(name, measured):
            yield NestedSeconds(name, depth, seconds, start)
            if name in NESTED and name not in measured:
                yield from _place(name, measured, depth + 1, start)
            start += seconds


MOST_BARS = 120
"""Columns of the picture of a run's seconds; of a longer run each is the mean of several steps."""


def seconds_picture(run: RunFiles) -> dict[str, Any] | None:
    """Returns what the seconds of each step went to, as rectangles of a picture 100 high, and their sums over
    the run, the largest first; None where no step of the run has them.
    """
    found = {step: _parts_of(row) for step, row in run.history.steps.items()}
    known = [(step, parts) for step, parts in found.items() if any(parts.values())]
    if not known:
        return None
    width = -(-len(known) // MOST_BARS)
    columns = [known[first : first + width] for first in range(0, len(known), width)]
    means = [
        {part: sum(parts[part] for _, parts in column) / len(column) for part in STEP_PARTS}
        for column in columns
    ]
    tallest = max(sum(mean.values()) for mean in means)
    total = sum(sum(parts.values()) for _, parts in known)
    sums = [(part, sum(parts[part] for _, parts in known)) for part in STEP_PARTS]
    return {
        "columns": len(columns),
        "bars": [bar for place, mean in enumerate(means) for bar in _stacked(place, mean, tallest)],
        "tallest": tallest,
        "parts": [
            {"part": part, "seconds": seconds / len(known), "share": 100 * seconds / total}
            for part, seconds in sorted(sums, key=lambda one: -one[1])
            if seconds
        ],
    }


def _parts_of(row: Mapping[str, float]) -> dict[StepPart, float]:
    return {part: max(0.0, row.get(part_metric(part), 0.0)) for part in STEP_PARTS}


def _stacked(place: int, seconds: Mapping[StepPart, float], tallest: float) -> list[dict[str, Any]]:
    """The rectangles of one column, from the bottom up, in the order of a step."""
    bars, top = [], 100.0
    for part in STEP_PARTS:
        height = 100 * seconds[part] / tallest
        top -= height
        if height:
            bars.append({"part": part, "x": place, "y": round(top, 2), "height": round(height, 2)})
    return bars

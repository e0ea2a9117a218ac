"""The numbers of a run, step by step, as the signatures of `art explain` look at them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from art.tracking.folders import ModelPaths
from art.wire.rollout_record import RolloutRecord
from art_extensions.ui.step_numbers import NumberPacker, StepNumbers, column_of

WINDOW, ENDS = 5, 3
"""Steps of a mean; steps at each end of a run that are compared."""
_EVALUATED, _TRAINED = re.compile("(val|test)/"), re.compile("train/")


@dataclass(frozen=True)
class Found:
    """The sight of a signature: a sentence with numbers, the steps, and which rollouts are examples of it."""

    words: str
    steps: tuple[int, ...]
    is_example: Callable[[RolloutRecord], bool] = lambda one: False
    rank: Callable[[RolloutRecord], float] = lambda one: 0.0
    """Examples with the highest rank are shown."""
    change: str | None = None
    """Replaces the signature's own, where what was seen says more."""
    quote: str | None = None
    """A text of the run itself, such as an exception."""


@dataclass(frozen=True)
class HistoryRows:
    """Rows of a history by step. Those of an evaluation have counts of their own, so they are apart."""

    train: dict[int, StepNumbers] = field(default_factory=dict)
    val: dict[int, StepNumbers] = field(default_factory=dict)
    packer: NumberPacker = field(default_factory=NumberPacker, repr=False, compare=False)

    def add(self, row: Mapping[str, Any]) -> tuple[int, StepNumbers] | None:
        """Adds a row; several rows of one step are one. Returns its step and its own numbers; None for a row
        without a step, which is left out. Raises OverflowError for an integer that is no float.
        """
        step = row.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            return None
        numbers = self.packer.pack(row)
        rows = self.val if any(map(_EVALUATED.match, numbers)) else self.train
        rows[step] = self.packer.merge(rows.get(step), numbers)
        return step, numbers

    def copy(self) -> HistoryRows:
        """Returns the rows of now, which later ones do not change."""
        return HistoryRows(dict(self.train), dict(self.val), self.packer)


@dataclass(frozen=True)
class RunTable:
    """The numbers of each training step, and of each step with an evaluation."""

    files: ModelPaths
    train: Mapping[int, StepNumbers] = field(default_factory=dict)
    val: Mapping[int, StepNumbers] = field(default_factory=dict)
    is_complete: bool = True
    """False: some steps in the middle are left out, and logs of trajectories are not to be opened."""

    @classmethod
    def of_rows(cls, folder: Path, rows: HistoryRows, *, is_complete: bool = True) -> RunTable:
        """Returns the table of rows, without those that are of no training and of no evaluation."""
        train = {s: row for s, row in sorted(rows.train.items()) if any(map(_TRAINED.match, row))}
        val = {step: row for step, row in sorted(rows.val.items()) if "val/reward" in row}
        return cls(ModelPaths(folder), train, val, is_complete)

    def until(self, step: int) -> RunTable:
        """Returns the table of the first steps, to this one."""
        train, val = ({s: row for s, row in rows.items() if s <= step} for rows in (self.train, self.val))
        return replace(self, train=train, val=val)

    def column(self, name: str) -> dict[int, float]:
        """Returns the training steps that have the number, and it."""
        return column_of(self.train, name)

    def share(self, part: str, whole: str) -> dict[int, float]:
        """Returns part / whole for each step that has the whole; a part that is not logged is 0."""
        return {s: row.get(part, 0.0) / row[whole] for s, row in self.train.items() if row.get(whole)}

    def gain(self, steps: Sequence[int] = ()) -> float:
        """Returns how much the reward of these steps (none: the last) is above that of the first, less what
        chance allows: two standard errors of the difference. Above 0: the run learned.
        """
        return self.rise([*self.train][:ENDS], [*(steps or [*self.train][-ENDS:])])

    def rise(self, first: Sequence[int], last: Sequence[int]) -> float:
        """Returns how much the last steps' reward is above that of the first, less what chance allows."""
        before, after = self._mean(first, "train/reward"), self._mean(last, "train/reward")
        if before is None or after is None or set(first) == set(last):
            return 0.0
        noise = math.hypot(
            (self._mean(first, "train/reward_sem") or 0.05) / math.sqrt(len(first)),
            (self._mean(last, "train/reward_sem") or 0.05) / math.sqrt(len(last)),
        )
        return after - before - 2 * noise

    def _mean(self, steps: Iterable[int], name: str) -> float | None:
        found = [self.train[step][name] for step in steps if name in self.train[step]]
        return fmean(found) if found else None


def worst(values: dict[int, float]) -> tuple[float, tuple[int, ...]]:
    """Returns the highest mean over five steps that follow each other (fewer: all), and these steps."""
    steps = [*values]
    if not steps:
        return 0.0, ()
    numbers = [*values.values()]
    sums = [*map(sum, zip(*(numbers[place:] for place in range(WINDOW)), strict=False))]
    first = sums.index(max(sums)) if sums else 0  # the first of equals
    return fmean(numbers[first : first + WINDOW]), tuple(steps[first : first + WINDOW])


def growth(values: dict[int, float]) -> float:
    """Returns the mean of the last steps over that of the first; 1 where too few are known."""
    known = [*values.values()]
    if len(known) < 2 * ENDS or fmean(known[:ENDS]) <= 0:
        return 1.0
    return fmean(known[-ENDS:]) / fmean(known[:ENDS])


def slope(values: dict[int, float], errors: dict[int, float]) -> tuple[float, float]:
    """Returns the weighted least squares slope over the steps and its standard error.

    A step whose rollouts all have one reward has an error of 0, which is too good to be true: it gets the
    mean of the others.
    """
    usual = fmean([error for error in errors.values() if error > 0] or [0.0])
    points = [(s, v, (errors[s] or usual) ** -2) for s, v in values.items() if s in errors and usual > 0]
    if len(points) < ENDS:
        return 0.0, math.inf
    weight = sum(w for _, _, w in points)
    middle = sum(w * s for s, _, w in points) / weight
    spread = sum(w * (s - middle) ** 2 for s, _, w in points)
    return sum(w * (s - middle) * v for s, v, w in points) / spread, spread**-0.5

"""Cells: one task, one method, one seed, so many seconds. Each is appended to a committed record as it ends.

    cells = [Cell(task="guess_number", method="grpo", seed=seed, seconds=480) for seed in (0, 1)]
    measured = run_missing(cells, RECORDS / "league.jsonl", model="art/smollm2")

A cell that has a record is not run again, so a bench that was stopped or killed goes on at the cell that was
under way (`bench.learning.cell_runner`). A record is a line of JSON: the cell, what was measured, when, on
which machine, at which revision. The methods are in `bench.learning.methods`. The modules league, sweep,
skills and examples of this folder are lists of cells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from art.process.files import write_whole
from art.runs.comparison import Estimate

RECORDS = Path(__file__).parents[1] / "records"
MODEL = "art/smollm2"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is run. Two cells with equal fields are the same cell."""

    task: str
    """The folder of an example."""
    method: str
    """A name of `bench.learning.methods.METHODS`."""
    variant: str = ""
    """Tells apart cells of one method in tables."""
    seed: int = 0
    seconds: float = 0.0
    """Of wall time, from the start of the method until its last step ends; evaluations are not counted."""
    held_out: int = 64
    """Scenarios of an evaluation; no step trains on them."""
    each: int = 2
    """Rollouts of each scenario in the last evaluation; with eight, greedy and pass@8 are measured too."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        return f"{self.task}, {self.method}{self.variant and f' {self.variant}'}, seed {self.seed}"

    def key(self, model: str) -> str:
        """The same for the same cell of the same model."""
        return json.dumps({**asdict(self), "model": model}, sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Point:
    """The held-out scenarios at one moment of a run, each rolled out once or more at temperature 1."""

    seconds: float
    tokens: int
    """Sampled so far, without those of evaluations."""
    step: int
    mean: float
    low: float
    high: float
    """The 95 % interval over scenarios."""
    scores: Sequence[float] = field(default_factory=list)
    """Of each scenario, in their order."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a cell found."""

    points: Sequence[Point]
    """The last is the final score."""
    greedy: float | None = None
    pass_at_8: float | None = None
    rewards: Sequence[float] = field(default_factory=list)
    """The mean reward of each step's rollouts."""
    note: str = ""

    @property
    def last(self) -> Point:
        return self.points[-1]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of a record file."""

    cell: Cell
    model: str
    measured: Measured
    when: str
    machine: str
    revision: str

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Record:
        read = json.loads(line)
        points = [Point(**one) for one in read["measured"]["points"]]
        return cls(
            **{
                **read,
                "cell": Cell(**read["cell"]),
                "measured": Measured(**{**read["measured"], "points": points}),
            }
        )


def read_records(path: Path) -> list[Record]:
    """Returns the records of a file, oldest first; none where there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Record.from_line(line) for line in lines]


def append_record(path: Path, record: Record) -> None:
    """Adds a line. The file is replaced as a whole: a kill leaves the old or the new one."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    write_whole(path, f"{text}{record.to_line()}\n")


def estimate_of(scores: Sequence[float]) -> Estimate:
    """Returns the mean of scores with its interval, inside what a score can be: at least 0 where none is
    below it, and at most 1 where none is above.
    """
    lowest, highest = (0.0 if min(scores) >= 0 else -math.inf), (1.0 if max(scores) <= 1 else math.inf)
    estimate = Estimate.from_values(scores, within=(lowest, highest))
    assert estimate is not None
    return estimate

"""Cells: one task, one method, one seed, so many seconds. Each is appended to a committed record as it ends.

    cells = [Cell(task="guess_number", method="grpo", seed=seed, seconds=480) for seed in (0, 1)]
    measured = run_missing(cells, RECORDS / "league.jsonl", model="art/smollm2")

A cell that has a record is not run again, so a bench that was stopped or killed goes on at the cell that was
under way. A record is a line of JSON: the cell, what was measured, when, on which machine, at which revision.
The methods are in `bench.methods`; `bench.league`, `bench.sweep`, `bench.skills` and `bench.examples` are
lists of cells.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from art.process.files import write_whole
from art.runs.comparison import Estimate
from bench.rows import machine

RECORDS = Path(__file__).parent / "records"
MODEL = "art/smollm2"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is run. Two cells with equal fields are the same cell."""

    task: str
    """The folder of an example."""
    method: str
    """A name of `bench.methods.METHODS`."""
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


def revision() -> str:
    """Names the commit, with a plus where files differ from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return told.stdout.strip() or "unknown"


Run = Callable[[Cell, str, Path], Measured]
"""Runs a cell of a model in an empty folder."""


def run_missing(
    cells: Iterable[Cell],
    path: Path,
    *,
    model: str = MODEL,
    run: Run | None = None,
    tell: Callable[[str], object] = sys.stderr.write,
) -> dict[Cell, Record]:
    """Runs the cells that have no record yet, appends each as it ends, and returns the records of all.

    run: None is `bench.methods.run_cell`. A cell that fails ends this call with its error; those before it
    are kept.
    """
    if run is None:
        from bench.methods import run_cell as run
    cells = list(cells)
    known = {one.cell.key(one.model): one for one in read_records(path)}
    for place, cell in enumerate(cells):
        if cell.key(model) in known:
            continue
        tell(f"{place + 1}/{len(cells)}: {cell.name}\n")
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="art-cell-") as folder:
            measured = run(cell, model, Path(folder))
        record = Record(
            cell=cell,
            model=model,
            measured=measured,
            when=datetime.now(UTC).strftime("%Y-%m-%d"),
            machine=machine(),
            revision=revision(),
        )
        append_record(path, record)
        known[cell.key(model)] = record
        last, whole = measured.last, time.monotonic() - begin
        tell(
            f"  {last.mean:.3f} ({last.low:.3f} to {last.high:.3f}) after {last.seconds:.0f} s, "
            f"{last.step} steps, {last.tokens} tokens; {whole:.0f} s with evaluations\n"
        )
    return {cell: known[cell.key(model)] for cell in cells if cell.key(model) in known}

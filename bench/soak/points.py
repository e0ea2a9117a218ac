"""The looks of a soak, one line of JSON each, appended as they are made: a soak that was stopped goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from art.process.files import write_whole
from bench.learning.cell_runner import revision
from bench.real.records import machine
from bench.soak.flatness import Look
from bench.soak.processes import Usage

RECORDS = Path(__file__).parents[1] / "records" / "soak.jsonl"
LOOKS = 100
"""Of a whole soak."""
NOTE = "soak.json"
"""The file of a soak's folder that names its run."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One look. `soak` and `run` say whose; `start` counts the starts of the processes, from 0."""

    soak: str
    run: str
    start: int
    at: int
    """Steps or requests so far."""
    processes: Mapping[str, Usage]
    disk: Mapping[str, int]
    """Bytes, and counts of files, by their names."""
    seconds: float
    """Median of a step, or of a request, since the look before."""
    views: Mapping[str, float] = field(default_factory=dict)
    """Seconds of CPU of the pages and of `art explain`, by name; empty for most looks."""
    when: str
    machine: str
    revision: str

    def to_line(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> Point:
        read = json.loads(line)
        return cls(**{**read, "processes": {name: Usage(**one) for name, one in read["processes"].items()}})


def read_points(path: Path, soak: str, run: str | None = None) -> list[Point]:
    """Returns the looks of a run, oldest first; None: of the run that was begun last."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    points = [one for one in map(Point.from_line, lines) if one.soak == soak]
    runs = list(dict.fromkeys(one.run for one in points))
    chosen = run or (runs[-1] if runs else None)
    return [one for one in points if one.run == chosen]


def stretches_of(points: Sequence[Point], process: str, name: str) -> list[list[Look]]:
    """Returns the looks at one figure of a process, apart for each start."""
    found: dict[int, list[Look]] = {}
    for one in points:
        if process in one.processes:
            found.setdefault(one.start, []).append((one.at, getattr(one.processes[process], name)))
    return list(found.values())


def disk_looks(points: Sequence[Point], name: str) -> list[Look]:
    """Returns the looks at one figure of the disk, which outlives all starts."""
    return [(one.at, one.disk[name]) for one in points if name in one.disk]


class Logbook:
    """Appends the looks of one start of a run. The run is the folder's, the start the next one."""

    def __init__(self, path: Path, soak: str, folder: Path) -> None:
        note = folder / NOTE
        if not note.exists():
            write_whole(note, json.dumps({"run": uuid4().hex[:8]}))
        self.path, self.soak, self.run = path, soak, str(json.loads(note.read_text())["run"])
        known = read_points(path, soak, self.run)
        self.start = max((one.start for one in known), default=-1) + 1
        self.done = max((one.at for one in known), default=0)
        """Where the newest look was."""
        self._where, self._revision = machine(), revision()

    def add(
        self,
        at: int,
        *,
        processes: Mapping[str, Usage],
        disk: Mapping[str, int],
        seconds: float,
        views: Mapping[str, float],
    ) -> Point:
        """Appends a look with a single write, and returns it."""
        point = Point(
            soak=self.soak, run=self.run, start=self.start, at=at, processes=processes, disk=disk,
            seconds=round(seconds, 5), views=views, when=datetime.now(UTC).strftime("%Y-%m-%d"),
            machine=self._where, revision=self._revision,
        )  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(f"{point.to_line()}\n".encode())
            os.fsync(file.fileno())
        return point

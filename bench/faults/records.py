"""One line of JSON for each cell that was run: how it ended, after how many seconds, on which machine."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RECORDS = Path(__file__).parent.parent / "records" / "faults.jsonl"
RANDOM_RECORDS = RECORDS.with_name("random_kills.jsonl")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """ending: `equal`, `fewer rollouts`, `no end` or the error of the run. flaws: why it fails."""

    ending: str
    flaws: tuple[str, ...]
    seconds: float
    when: str
    machine: str
    revision: str

    @property
    def holds(self) -> bool:
        return not self.flaws


@dataclass(frozen=True, kw_only=True)
class CellRecord(RunRecord):
    """seconds: from the fault to the end of the run that it met. took: seconds of the whole cell, and of the
    undisturbed run where it was the first to need it; None: an older record.
    """

    cell: str
    took: float | None = None


@dataclass(frozen=True, kw_only=True)
class RandomRecord(RunRecord):
    """A run with kills at random moments. seed: of the moments. kills: by component."""

    seed: int
    kills: dict[str, int]


def append_record(path: Path, record: DataclassInstance) -> None:
    """Several commands may append at once."""
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(asdict(record)) + "\n")


def read_records(path: Path) -> Mapping[str, CellRecord]:
    """The newest record of each cell, by its name."""
    return {one["cell"]: CellRecord(**one) for one in _runs(path)}


def read_random(path: Path) -> Sequence[RandomRecord]:
    """The newest record of each seed."""
    return list({one["seed"]: RandomRecord(**one) for one in _runs(path)}.values())


def _runs(path: Path) -> list[dict[str, Any]]:
    return [one | {"flaws": tuple(one["flaws"])} for one in read_lines(path)]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The fields of each record; none where there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.strip()]

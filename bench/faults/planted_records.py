"""One line of JSON for each planted fault that was tried: what found it, and what it said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.faults.records import read_lines

RECORDS = Path(__file__).parent.parent / "records" / "planted.jsonl"


@dataclass(frozen=True, kw_only=True)
class PlantedRecord:
    """A fault that was tried. report: what was said with it; calm: what was said without it."""

    by: str
    what: str
    file: str
    old: str
    new: str
    found: bool
    report: str
    calm: str
    seconds: float
    when: str
    machine: str
    revision: str

    def is_of(self, change: Mapping[str, str]) -> bool:
        """Returns whether the record is of this change."""
        return change == {"file": self.file, "old": self.old, "new": self.new}


def read_records(path: Path) -> Mapping[str, PlantedRecord]:
    """The newest record of each fault, by its words."""
    return {one["what"]: PlantedRecord(**one) for one in read_lines(path)}

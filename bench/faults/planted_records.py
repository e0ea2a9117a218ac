"""One line of JSON for each planted fault that was tried: what found it, and what it said."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

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


def append_record(path: Path, record: PlantedRecord) -> None:
    """Several commands may append at once."""
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(asdict(record)) + "\n")


def read_records(path: Path) -> Mapping[str, PlantedRecord]:
    """The newest record of each fault, by its words."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [PlantedRecord(**json.loads(line)) for line in lines if line.strip()]
    return {one.what: one for one in records}

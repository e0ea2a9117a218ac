"""`history.jsonl`: one JSON object a line, only ever appended to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row with a single write, so that rows of several processes never mix.

    A line that a killed process left unfinished is closed first: it is lost, the new row is not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
    finally:
        os.close(descriptor)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The complete rows, in order; none when there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # torn by a kill
            if isinstance(row, dict):
                yield row


def best_step(path: Path, metric: str) -> int | None:
    """The step with the highest mean of a metric (the later one of equals), or None when no row has it."""
    values: dict[int, list[float]] = {}
    for row in read_rows(path):
        if metric in row:
            values.setdefault(int(row["step"]), []).append(float(row[metric]))
    return max(values, key=lambda step: (fmean(values[step]), step)) if values else None

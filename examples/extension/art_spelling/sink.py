"""`report_metrics=["csv"]`: each number of a run as a line of `numbers.csv` in the model's folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from art.tracking.sinks.sink import ReportedRun, TableRow


class CsvSink:
    """One run. All methods are called in a thread of their own, one after another."""

    def open(self, run: ReportedRun, config: Mapping[str, Any]) -> None:
        """Goes on with the file of an earlier process."""
        run.folder.mkdir(parents=True, exist_ok=True)
        self._file = (run.folder / "numbers.csv").open("a", newline="", encoding="utf-8")
        self._lines = csv.writer(self._file)

    def config(self, values: Mapping[str, Any]) -> None:
        """Does nothing: a table of numbers has no place for settings."""

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Writes a line for each number. It has arrived when this returns."""
        self._lines.writerows((step, name, value) for name, value in sorted(row.items()))
        self._file.flush()

    def table(self, name: str, step: int, rows: Sequence[TableRow]) -> None:
        """Does nothing: this tracker keeps numbers."""

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

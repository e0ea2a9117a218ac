"""The numbers of a run, step by step, as its pages show them: read once, and then as the history grows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from art.tracking.model_files import GrowingHistory
from art_extensions.ui.run_table import HistoryRows
from art_extensions.ui.step_numbers import StepNumbers, all_names

MOST_KEPT = 50_000
"""Steps of all histories that are kept in memory, 50 MB of a hundred numbers each; the newest always is."""


@dataclass(frozen=True)
class HistoryTable:
    """The numbers of each step. Rows of one step, of several splits, are one."""

    steps: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    rows: HistoryRows = field(default_factory=HistoryRows)
    """The same, rows of an evaluation apart."""
    problem: str | None = None
    """Why its file cannot be read to the end; what was read before the damage is shown."""

    def column(self, name: str) -> list[float | None]:
        """Returns one number for each step, None where the step has none."""
        return [row.get(name) for row in self.steps.values()]

    def names(self) -> list[str]:
        """Returns the names of all numbers, in order."""
        return sorted(all_names(self.steps.values()))


class Histories:
    """The histories that pages asked for last, as far as they are read. Threads may share it."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._known: OrderedDict[Path, _KnownHistory] = OrderedDict()
        self._lock = threading.Lock()

    def table(self, path: Path) -> HistoryTable:
        """Returns the table of a file as it is now."""
        with self._lock:
            if path not in self._known:
                self._known[path] = _KnownHistory(path)
            known = self._known[path]
            self._known.move_to_end(path)
        table = known.table()
        with self._lock:
            while len(self._known) > 1 and sum(map(len, self._known.values())) > self._most:
                self._known.popitem(last=False)
        return table


class _KnownHistory:
    """One file. A table that was returned never changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._history = GrowingHistory(path)
        self._rows = HistoryRows()
        self._steps: dict[int, StepNumbers] = {}
        self._stamp: tuple[int, ...] | None = None
        """The stamp of the file when it was read to its end."""
        self._table = HistoryTable()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._steps)

    def table(self) -> HistoryTable:
        with self._lock:
            if (stamp := self._stamp_now()) != self._stamp:
                problem = self._read()
                self._stamp = stamp if problem is None else None
                self._table = HistoryTable(dict(sorted(self._steps.items())), self._rows.copy(), problem)
            return self._table

    def _stamp_now(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> str | None:
        """Reads what is new. Returns why the rest cannot be read."""
        try:
            for row in self._history.new_rows(self._forget):
                if (added := self._rows.add(row)) is not None:
                    step, numbers = added
                    self._steps[step] = self._rows.packer.merge(self._steps.get(step), numbers)
        except (OSError, ValueError, OverflowError) as error:
            return f"{self._path.name} cannot be read: {str(error).removeprefix(f'{self._path}, ')}"
        return None

    def _forget(self) -> None:
        self._steps.clear()
        self._rows = HistoryRows()

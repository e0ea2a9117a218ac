"""The numbers of a run, step by step, as its pages show them: read once, and then as the history grows."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art.tracking.model_files import GrowingHistory

MOST_KEPT = 50_000
"""Steps of all histories that are kept in memory, 50 MB of a hundred numbers each; the newest always is."""
_INFINITE = float("inf")


class StepNumbers(Mapping[str, float]):
    """The numbers of one step. Steps share their names, which takes a tenth of the memory of a dict."""

    __slots__ = ("_places", "_values")
    _places: Mapping[str, int]
    """Each name's place among the values."""

    def __init__(self, places: Mapping[str, int], values: array[float]) -> None:
        self._places, self._values = places, values

    def __getitem__(self, name: str) -> float:
        return self._values[self._places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def get(self, name: str, default: Any = None) -> Any:
        """See `Mapping.get`; pages ask each step of a long run."""
        place = self._places.get(name)
        return default if place is None else self._values[place]


@dataclass(frozen=True)
class HistoryTable:
    """The numbers of each step. Rows of one step, of several splits, are one."""

    steps: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    problem: str | None = None
    """Why its file cannot be read to the end; what was read before the damage is shown."""

    def column(self, name: str) -> list[float | None]:
        """Returns one number for each step, None where the step has none."""
        return [row.get(name) for row in self.steps.values()]

    def names(self) -> list[str]:
        """Returns the names of all numbers, in order."""
        return sorted({name for row in self.steps.values() for name in row})


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
        self._steps: dict[int, StepNumbers] = {}
        self._layouts: dict[tuple[str, ...], dict[str, int]] = {}
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
                self._table = HistoryTable(dict(sorted(self._steps.items())), problem)
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
                step = row.get("step")
                if isinstance(step, int) and not isinstance(step, bool):
                    self._add(step, row)
        except (OSError, ValueError, OverflowError) as error:
            return f"{self._path.name} cannot be read: {str(error).removeprefix(f'{self._path}, ')}"
        return None

    def _forget(self) -> None:
        self._steps.clear()
        self._layouts.clear()

    def _add(self, step: int, row: Mapping[str, Any]) -> None:
        numbers = {
            name: value
            for name, value in row.items()
            if type(value) in (float, int) and -_INFINITE < value < _INFINITE
        }
        if step in self._steps:
            numbers = {**self._steps[step], **numbers}
        names = tuple(numbers)
        places = self._layouts.setdefault(names, {})
        if len(places) != len(names):
            places.update((name, place) for place, name in enumerate(names))
        self._steps[step] = StepNumbers(places, array("d", numbers.values()))

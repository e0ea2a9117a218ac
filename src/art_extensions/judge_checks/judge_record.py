"""What was found of a judge, group by group. It keeps the windows that the figures are averaged over."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from art.errors import ConfigurationError
from art.process.files import make_private_folder, private_opener, write_whole
from art.process.foreign_files import parse_json


class JudgeRecord:
    """The newest observations of each name, and its first ones. With a file it outlives the process.

    The file has one JSON object a line: the judge's name, the group's key and its observations. Groups that
    are scored again after a restart are not counted again. Judges of other names may have the same file.
    """

    def __init__(self, window: int, path: str | Path | None = None, *, judge: str) -> None:
        self.judge, self.window, self.half = judge, window, max(1, window // 2)
        self.groups = 0
        self._first: dict[str, list[float]] = {}
        self._last: dict[str, deque[float]] = {}
        self._known: Counter[str] = Counter()
        self._path = Path(path) if path is not None else None
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def add(self, key: str, found: Mapping[str, float]) -> None:
        """One group's observations."""
        if self._known[key] > 0:
            self._known[key] -= 1
            return
        self._count(found)
        if self._path is not None:
            make_private_folder(self._path.parent)
            with open(self._path, "a", encoding="utf-8", opener=private_opener) as file:
                file.write(json.dumps({"judge": self.judge, "key": key, **found}) + "\n")

    def recent(self, name: str) -> list[float]:
        """Observations in the window, oldest first."""
        return list(self._last.get(name, ()))

    def mean(self, name: str) -> float | None:
        """Returns the mean over the window; None before half of it is known."""
        values = self.recent(name)
        return fmean(values) if len(values) >= self.half else None

    def drift(self, name: str) -> float | None:
        """The mean of the newest half window less that of the run's first; None before both are known."""
        values = self.recent(name)
        if len(values) < 2 * self.half:
            return None
        return fmean(values[-self.half :]) - fmean(self._first[name])

    def _count(self, found: Mapping[str, float]) -> None:
        self.groups += 1
        for name, value in found.items():
            first = self._first.setdefault(name, [])
            if len(first) < self.half:
                first.append(value)
            self._last.setdefault(name, deque(maxlen=self.window)).append(value)

    def _read(self, path: Path) -> None:
        try:
            *complete_lines, last = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path} is no judge's record: {error}") from error
        if last:  # a line that a killed process did not end: its group is not counted yet
            write_whole(path, "".join(line + "\n" for line in complete_lines), durable=False)
        for number, line in enumerate(complete_lines, 1):
            try:
                found = parse_json(line)
                key, judge = found.pop("key"), found.pop("judge", self.judge)  # older lines name none
                if judge != self.judge:
                    continue
                self._count({name: float(value) for name, value in found.items()})
                self._known[key] += 1
            except (ValueError, TypeError, OverflowError, AttributeError, KeyError) as error:
                raise ConfigurationError(
                    f"{path}, line {number}: {line[:80]!r} is no line of a judge's record ({error}); "
                    "JudgeChecks(record=...) takes a file of its own"
                ) from error

"""The index of all rollouts, `ui-index.sqlite` in the data folder: a row for each, so lists are instant.

It holds nothing that the run's files do not: it is brought up to date file by file when a page is asked for,
and may be deleted at any time. Where the folder cannot be written it lies in memory. A tenant of a server has
one of its own, `server/ui-index-<tenant>.sqlite`.

Lists are read by page. The places where pages begin are found once for each order and filter; from then on a
page is read from its first key on, wherever it lies.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art.process.files import create_private
from art.tracking.folders import LOG_SUFFIXES
from art.wire.rollout_record import ROLLOUT_FILE
from art_extensions.ui.access import EVERYBODY, Viewer
from art_extensions.ui.rollout_rows import ListedRollout, rows_of_step
from art_extensions.ui.run_files import RunFiles

INDEX_FILE = "ui-index.sqlite"
PAGE = 200
"""Rollouts of a page of a list."""
_SMALLEST = -1e300
"""The sort key of a missing number: it comes last in a descending list."""
_VERSION = 1
_COLUMNS = tuple(ListedRollout.__annotations__)
_CREATE = f"""
CREATE TABLE files (run TEXT, split TEXT, step INTEGER, stamp TEXT, PRIMARY KEY (run, split, step));
CREATE TABLE rollouts (
    run TEXT, {", ".join(_COLUMNS)}, PRIMARY KEY (run, split, step, grp, place)
) WITHOUT ROWID;
CREATE INDEX by_reward ON rollouts (run, coalesce(reward, {_SMALLEST}), step, grp, place, split);
PRAGMA user_version = {_VERSION};
"""
ORDERS = ("step", "reward", "advantage", "tokens", "turns", "seconds")
"""What a list can be sorted by."""
_KEY = ("step", "grp", "place", "split")
_BOUNDARIES_KEPT = 64
_FEW = 100
"""Steps that are asked for one by one."""
_TOGETHER = 50
"""Steps that are written at once."""


@dataclass(frozen=True, kw_only=True)
class ListQuery:
    """The filter and the order of a list."""

    run: str
    split: str | None = None
    step: int | None = None
    group: int | None = None
    fate: str | None = None
    text: str | None = None
    """A part of the scenario, of the first message or of the rollout's name."""
    order: str = "step"
    descending: bool = False

    def conditions(self) -> tuple[str, list[object]]:
        """Returns the SQL of the filter, and its values."""
        parts, values = ["run = ?"], list[object]([self.run])
        for column in ("split", "step", "group", "fate"):
            if (value := getattr(self, column)) is not None:
                parts.append(f"{'grp' if column == 'group' else column} = ?")
                values.append(value)
        if self.text:
            parts.append("(instr(lower(about), ?) OR instr(lower(scenario), ?) OR instr(rollout, ?))")
            values += [self.text.lower()] * 3
        return " AND ".join(parts), values

    def keys(self) -> str:
        """Returns the columns of the order, the last ones of which make it total."""
        first = [] if self.order == "step" else [f"coalesce({self.order}, {_SMALLEST})"]
        return ", ".join((*first, *_KEY))


class RolloutIndex:
    """The rows of the rollouts of one data folder. Threads may share it."""

    def __init__(self, data_dir: Path, viewer: Viewer = EVERYBODY) -> None:
        tenants = data_dir / "server" / f"ui-index-{viewer.tenant}.sqlite"
        self._connection = _open(data_dir / INDEX_FILE if viewer.tenant is None else tenants)
        self._lock = threading.Lock()
        self._boundaries: OrderedDict[tuple[ListQuery, str], list[tuple[Any, ...]]] = OrderedDict()

    def refresh(self, run: RunFiles) -> str:
        """Reads the files of a run that have changed since. Returns a word for the state of all of them."""
        with self._lock:
            known = {
                (split, step): stamp
                for split, step, stamp in self._connection.execute(
                    "SELECT split, step, stamp FROM files WHERE run = ?", (run.key,)
                )
            }
            there = {
                (split, step): stamp
                for split, steps in run.splits.items()
                for step, stamp in step_stamps(run, split, steps)
            }
            for place in known.keys() - there.keys():
                with self._connection:
                    self._replace(run, *place, None, [])
            changed = [place for place, stamp in there.items() if known.get(place) != stamp]
            for first in range(0, len(changed), _TOGETHER):
                places = changed[first : first + _TOGETHER]
                found = [rows_of_step(run, *place) for place in places]
                with self._connection:
                    for place, rows in zip(places, found, strict=True):
                        self._replace(run, *place, there[place], rows)
        return str(hash(tuple(sorted(there.items()))))

    def count(self, query: ListQuery) -> int:
        """Returns how many rollouts a list has."""
        where, values = query.conditions()
        found = self._fetch(f"SELECT count(*) FROM rollouts WHERE {where}", values)
        return int(found[0][0])

    def page(self, query: ListQuery, number: int, version: str) -> list[ListedRollout]:
        """Returns one page of a list, counted from 0. version: what `refresh` returned."""
        starts = self._starts(query, version)
        if not 0 <= number < len(starts):
            return []
        where, values = query.conditions()
        way, sign = ("DESC", "<=") if query.descending else ("ASC", ">=")
        keys = query.keys()
        order = ", ".join(f"{key} {way}" for key in _split_keys(keys))
        marks = ", ".join("?" * len(starts[number]))
        rows = self._fetch(
            f"SELECT {', '.join(_COLUMNS)} FROM rollouts WHERE {where} AND ({keys}) {sign} ({marks}) "
            f"ORDER BY {order} LIMIT {PAGE}",
            [*values, *starts[number]],
        )
        return [ListedRollout(*row) for row in rows]

    def rows(self, query: ListQuery) -> list[ListedRollout]:
        """Returns all rollouts of a step or a group."""
        where, values = query.conditions()
        found = self._fetch(
            f"SELECT {', '.join(_COLUMNS)} FROM rollouts WHERE {where} ORDER BY {', '.join(_KEY)}", values
        )
        return [ListedRollout(*row) for row in found]

    def fates(self, query: ListQuery) -> dict[str, int]:
        """Returns how many rollouts met each fate, the most frequent first; '' where it is not recorded."""
        where, values = query.conditions()
        found = self._fetch(
            f"SELECT coalesce(fate, ''), count(*) AS n FROM rollouts WHERE {where} "
            "GROUP BY 1 ORDER BY n DESC",
            values,
        )
        return dict(found)

    def group_sums(self, run: str, split: str, steps: Sequence[int]) -> dict[int, list[tuple[float, int]]]:
        """Returns the sum and the number of the rewards of each group of these steps, by step."""
        query = (
            "SELECT step, sum(reward), count(reward) FROM rollouts WHERE run = ? AND split = ? AND reward "
            "IS NOT NULL{} GROUP BY step, grp"
        )
        if len(steps) <= _FEW:
            found = [
                row
                for step in steps
                for row in self._fetch(query.format(" AND step = ?"), [run, split, step])
            ]
        else:
            found = self._fetch(query.format(""), [run, split])
        sums: dict[int, list[tuple[float, int]]] = {}
        for step, total, count in found:
            sums.setdefault(step, []).append((total, count))
        return sums

    def extreme_rewards(self, run: str) -> list[float]:
        """Returns the lowest and the highest reward of a rollout of the run; nothing where none has one."""
        key = f"coalesce(reward, {_SMALLEST})"  # as the table's index has it
        where = f"FROM rollouts WHERE run = ? AND {key} > {_SMALLEST} ORDER BY {key}"
        ends = (self._fetch(f"SELECT reward {where} {way} LIMIT 1", [run]) for way in ("ASC", "DESC"))
        return [reward for found in ends for (reward,) in found]

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

    def _fetch(self, query: str, values: Iterable[object]) -> list[Any]:
        with self._lock:
            return self._connection.execute(query, list(values)).fetchall()

    def _starts(self, query: ListQuery, version: str) -> list[tuple[Any, ...]]:
        """Returns the keys of the first rollouts of all pages."""
        if (found := self._boundaries.get((query, version))) is not None:
            return found
        where, values = query.conditions()
        keys = query.keys()
        way = "DESC" if query.descending else "ASC"
        order = ", ".join(f"{key} {way}" for key in _split_keys(keys))
        found = self._fetch(
            f"WITH numbered AS (SELECT {', '.join(f'{k} AS k{i}' for i, k in enumerate(_split_keys(keys)))}, "
            f"row_number() OVER (ORDER BY {order}) AS place_in_list FROM rollouts WHERE {where}) "
            f"SELECT {', '.join(f'k{i}' for i in range(len(_split_keys(keys))))} FROM numbered "
            f"WHERE place_in_list % {PAGE} = 1 ORDER BY place_in_list",
            values,
        )
        self._boundaries[query, version] = found
        while len(self._boundaries) > _BOUNDARIES_KEPT:
            self._boundaries.popitem(last=False)
        return found

    def _replace(
        self, run: RunFiles, split: str, step: int, stamp: str | None, rows: Iterable[ListedRollout]
    ) -> None:
        place = (run.key, split, step)
        self._connection.execute("DELETE FROM rollouts WHERE run = ? AND split = ? AND step = ?", place)
        self._connection.execute("DELETE FROM files WHERE run = ? AND split = ? AND step = ?", place)
        if stamp is not None:
            marks = ", ".join("?" * (len(_COLUMNS) + 1))
            self._connection.executemany(
                f"INSERT OR REPLACE INTO rollouts VALUES ({marks})", [(run.key, *row) for row in rows]
            )
            self._connection.execute("INSERT INTO files VALUES (?, ?, ?, ?)", (*place, stamp))


def step_stamp(run: RunFiles, split: str, step: int) -> str:
    """Returns sizes and times of the files of a step: another text once one of them has changed."""
    return next(stamp for _, stamp in step_stamps(run, split, (step,)))


def step_stamps(run: RunFiles, split: str, steps: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yields each step with its stamp. A long run has thousands: no path object is made for them."""
    log, record = os.fspath(run.log.folder / split), os.fspath(run.files.steps)
    for step in steps:
        files = [(f"{log}/{step:04d}{end}", f"{step:04d}{end}") for end in LOG_SUFFIXES]
        if split == "train":
            files.append((f"{record}/{step:04d}/{ROLLOUT_FILE}", ROLLOUT_FILE))
        parts = []
        for path, name in files:
            try:
                found = os.stat(path)
            except OSError:
                continue
            parts.append(f"{name}:{found.st_size}:{found.st_mtime_ns}")
        yield step, " ".join(parts)


def _split_keys(keys: str) -> list[str]:
    head, *tail = keys.rsplit(", ", len(_KEY))
    return [head, *tail] if head.startswith("coalesce") else keys.split(", ")


def _open(path: Path) -> sqlite3.Connection:
    """Opens the index, or begins it anew where it is of another release or damaged."""
    for fresh in (False, True):
        with suppress(sqlite3.Error, OSError):
            if fresh:
                for end in ("", "-wal", "-shm"):
                    path.with_name(path.name + end).unlink(missing_ok=True)
            create_private(path)
            return _prepared(sqlite3.connect(path, check_same_thread=False, timeout=10.0))
    return _prepared(sqlite3.connect(":memory:", check_same_thread=False))


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != _VERSION:
            if version:
                raise sqlite3.DatabaseError(f"an index of version {version}")
            connection.executescript(_CREATE)
        return connection
    except BaseException:
        connection.close()
        raise

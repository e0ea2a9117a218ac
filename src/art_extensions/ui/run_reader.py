"""What pages ask for of a run's files, with what was read kept: the index, the logs that were opened last."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from art.errors import ARTError
from art.tracking.step_record import read_rollouts
from art.trajectories import Trajectory, TrajectoryGroup
from art.wire.rollout_record import RolloutRecord
from art_extensions.ui.access import EVERYBODY, Viewer
from art_extensions.ui.conversation import LogReader, visible
from art_extensions.ui.explain import Explanation, explain_rows
from art_extensions.ui.formats import fate_kind, fate_words, number, signed
from art_extensions.ui.index import ORDERS, PAGE, ListQuery, RolloutIndex, step_stamp
from art_extensions.ui.rollout_rows import ListedRollout
from art_extensions.ui.run_files import FILES, RunFiles, StoredRows, find_runs
from art_extensions.ui.run_history import Histories

NEARLY = 1.02
"""Times the length of a history that was explained: a longer one is explained again."""
FIRST_ROWS, MOST_ROWS, LONGEST_TEXT = 40, 20_000, 200
"""Rows of a list in the page: of one that is served, and of one that is kept as a file."""


class RunReader:
    """The runs below one folder, as far as they are the viewer's."""

    def __init__(self, root: Path, viewer: Viewer = EVERYBODY, stored: StoredRows = FILES) -> None:
        self.root, self.viewer, self._stored = root, viewer, stored
        self._logs, self._histories = LogReader(), Histories()
        self._indexes: dict[Path, RolloutIndex] = {}
        self._explanations: dict[Path, tuple[tuple[int, int], Explanation | None]] = {}
        """Folder of a run -> size and time of its history when it was read, and the explanation."""
        self._lock = threading.Lock()

    def runs(self) -> dict[str, RunFiles]:
        """Returns the runs that are there now, by their keys."""
        return find_runs(self.root, self.viewer, self._stored, self._histories)

    def index(self, run: RunFiles) -> RolloutIndex:
        """Returns the index of a run's data folder."""
        with self._lock:
            if run.data_dir not in self._indexes:
                self._indexes[run.data_dir] = RolloutIndex(run.data_dir, self.viewer)
            return self._indexes[run.data_dir]

    def trajectory(self, run: RunFiles, split: str, step: int, group: int, place: int) -> Trajectory | None:
        """Returns the logged trajectory, None where there is none. Raises ARTError."""
        found = self.group(run, split, step, group)
        if found is not None and place < len(found.trajectories):
            return found.trajectories[place]
        return None

    def group(self, run: RunFiles, split: str, step: int, place: int) -> TrajectoryGroup | None:
        """Returns the logged group, None where there is none. Raises ARTError."""
        if not run.log.files(split, step):
            return None
        return self._logs.group(run, split, step, place, step_stamp(run, split, step))

    def record(self, run: RunFiles, step: int, group: int, row: ListedRollout) -> RolloutRecord | None:
        """Returns what is recorded of a rollout of a training step."""
        records = self.records(run, step)
        for one in records:
            if one.rollout == row.rollout:
                return one
        return next((one for one in records if (one.group, one.place) == (group, row.place)), None)

    def records(self, run: RunFiles, step: int) -> list[RolloutRecord]:
        """Returns what is recorded of the rollouts of a training step; none where that cannot be read."""
        with suppress(ARTError, OSError, ValueError):
            return read_rollouts(run.files.path, step)
        return []

    def explanation(self, run: RunFiles) -> Explanation | None:
        """Returns what `art explain` says of the run, which may be a fiftieth longer now; None before its
        first step of training.
        """
        size, changed = 0, 0
        with suppress(OSError):
            status = run.files.history.stat()
            size, changed = status.st_size, status.st_mtime_ns
        known = self._explanations.get(run.files.path)
        if known is not None:
            (known_size, known_change), found = known
            if known_size < size <= NEARLY * known_size or (known_size, known_change) == (size, changed):
                return found
        found = None
        history = run.histories.table(run.files.history)
        if history.problem is None:  # a damaged history has no notes
            with suppress(ARTError, OSError, ValueError, ArithmeticError):
                found = explain_rows(run.files.path, run.key, history.rows)
        self._explanations[run.files.path] = ((size, changed), found)
        return found

    def list_of(
        self, run: RunFiles, query: ListQuery, version: str, *, exported: bool = False
    ) -> dict[str, Any]:
        """Returns what the template of a list needs. exported: all rows are in the page, not the first."""
        index = self.index(run)
        shown = index.rows(query)[:MOST_ROWS] if exported else index.page(query, 0, version)[:FIRST_ROWS]
        return {
            "query": query,
            "count": min(index.count(query), len(shown)) if exported else index.count(query),
            "page_size": PAGE,
            "first_rows": [list_cells(row) for row in shown],
            "fates": index.fates(ListQuery(run=run.key, split=query.split, step=query.step)),
            "orders": ORDERS,
        }

    def close(self) -> None:
        """Closes the indexes."""
        for index in self._indexes.values():
            index.close()


def list_cells(row: ListedRollout) -> dict[str, Any]:
    """Returns what a list shows of a rollout."""
    return {
        "split": row.split,
        "step": row.step,
        "group": row.grp,
        "place": row.place,
        "what": visible(" · ".join(filter(None, (row.scenario, row.about))) or row.rollout or "")[
            :LONGEST_TEXT
        ],
        "reward": "none" if row.reward is None and row.unscored else number(row.reward),
        "unscored": visible(row.unscored)[:LONGEST_TEXT] if row.unscored else None,
        "fate": fate_words(row.fate),
        "kind": fate_kind(row.fate),
        "advantage": signed(row.advantage),
        "tokens": number(row.tokens),
        "turns": number(row.turns),
    }

"""The runs below a folder, read from their files alone. A run is one model in one data folder.

    .art/<project>/models/<name>/history.jsonl          its curves
    .art/<project>/models/<name>/steps/0007/             what became of each rollout
    .art/<project>/models/<name>/trajectories/train/     what was said
    .art/server/jobs.sqlite, lock                        whether it lives

A server that keeps jobs and samples in a database gives a reader of its rows (`StoredRows`) instead. Nothing
is written, and no name of an address becomes a path: runs are looked up among those that were found.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from art.process.foreign_files import open_foreign, parse_json
from art.process.running_server import is_in_use
from art.tracking.folders import ModelPaths, model_folders
from art.tracking.model_files import read_json
from art.tracking.trajectory_log import LoggedSteps
from art_extensions.ui.access import EVERYBODY, Viewer
from art_extensions.ui.run_history import Histories, HistoryTable

SPLITS_FIRST = ("train", "val", "test")
NO_SETTINGS = ("job_id", "groups", "discarded", "conversations", "batches", "learning_rates", "expected_step")
"""Fields of a job that are no settings."""
Stored = Literal["jobs", "ledger"]
HERE = "-"
"""The place of the data folder that the pages were opened for."""


class StoredRows(Protocol):
    """Reads the tables of jobs, and those of samples, that a server keeps. `?` stands for a value."""

    def read(
        self, data_dir: Path, part: Stored, query: str, values: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """Returns the rows of a query about one data folder; none where they cannot be read."""
        ...

    def json_without(self, column: str, names: Sequence[str]) -> str:
        """Returns an expression for the text of a JSON object without these fields; NULL if it is none."""
        ...


class StoredFiles:
    """The SQLite files of a data folder, which are never written here."""

    def read(
        self, data_dir: Path, part: Stored, query: str, values: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """See `StoredRows.read`."""
        path = data_dir / "server" / f"{part}.sqlite"
        if not path.is_file():
            return []
        for mode in ("mode=ro", "mode=ro&immutable=1"):  # a folder that is read-only has no place for -shm
            with suppress(sqlite3.Error), closing(_open_read_only(path, mode)) as connection:
                return connection.execute(query, values).fetchall()
        return []

    def json_without(self, column: str, names: Sequence[str]) -> str:
        """See `StoredRows.json_without`."""
        fields = ", ".join(f"'$.{name}'" for name in names)
        return f"CASE WHEN json_valid({column}) THEN json_remove({column}, {fields}) END"


FILES = StoredFiles()


@dataclass(frozen=True)
class RunFiles:
    """One model of one data folder, as addresses name it: /runs/<place>/<project>/<name>."""

    place: str
    project: str
    name: str
    data_dir: Path
    files: ModelPaths
    viewer: Viewer = EVERYBODY
    stored: StoredRows = field(default=FILES, compare=False)
    histories: Histories = field(default_factory=Histories, compare=False)

    def read_stored(self, part: Stored, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows of a query of the server's jobs or samples; none where they cannot be read."""
        return self.stored.read(self.data_dir, part, query, values)

    @property
    def key(self) -> str:
        """`place/project/name`."""
        return f"{self.place}/{self.project}/{self.name}"

    @cached_property
    def history(self) -> HistoryTable:
        """The rows of `history.jsonl`, as they were when they were first asked for."""
        return self.histories.table(self.files.history)

    @cached_property
    def step_folders(self) -> frozenset[int]:
        """The steps that have a folder, as `history`."""
        with suppress(OSError), os.scandir(self.files.steps) as found:
            return frozenset(int(one.name) for one in found if one.name.isdecimal() and one.is_dir())
        return frozenset()

    @cached_property
    def splits(self) -> Mapping[str, list[int]]:
        """The steps that have logged trajectories or a record, oldest first, by split, as `history`."""
        logged = self.log.by_split()
        found = {_shown(self.log.folder / split): set(steps) for split, steps in logged.items()}
        if self.step_folders:
            found["train"] = found.get("train", set()) | self.step_folders
        first = [name for name in SPLITS_FIRST if name in found]
        return {name: sorted(found[name]) for name in [*first, *sorted(found.keys() - set(first))]}

    @property
    def log(self) -> LoggedSteps:
        """The log of its trajectories."""
        return LoggedSteps(self.files.trajectories)

    def checkpoints(self) -> list[CheckpointFacts]:
        """Returns the checkpoints that are kept, oldest first."""
        found = (path for path in _folders(self.files.checkpoints) if path.name.isdecimal())
        read = [CheckpointFacts.read(path) for path in sorted(found, key=lambda path: int(path.name))]
        return [replace(one, job=self.viewer.in_own_names(one.job)) for one in read]

    def settings(self) -> dict[str, Any]:
        """Returns the settings of the run, the model, its registration and its newest step of training."""
        beside = self.data_dir.parent / "settings.json"
        # What lies beside a server's folder is its operator's.
        files = {"model": self.files.description} | ({} if self.viewer.tenant else {"run": beside})
        read = {name: self.viewer.in_own_names(_read_object(path)) for name, path in files.items()}
        read |= {"registration": self.registration(), "training": self.newest_training()}
        return {name: value for name, value in read.items() if value}

    def registration(self) -> dict[str, Any]:
        """Returns what the server keeps of the model; nothing where it was not registered."""
        read = _read_object(self.files.path / "registration.json")
        with suppress(OSError, ValueError):
            with open_foreign(self.files.path / ".origin") as file:
                read["origin"] = read.get("origin") or file.read().decode("utf-8")
        if not str(read.get("origin") or "").startswith(self.viewer.prefix):
            read.pop("origin", None)  # another's, of whom a tenant knows nothing
        found: dict[str, Any] = self.viewer.in_own_names(read)
        return found

    def newest_training(self) -> dict[str, Any]:
        """Returns the settings of the newest job that made a step, as the server used them."""
        query = f"""
            SELECT step, kind, {self.stored.json_without("request", NO_SETTINGS)}
            FROM jobs WHERE number = (
                SELECT max(number) FROM jobs WHERE project = ? AND name = ? AND state = 'done'
            )
        """
        inside = f"{self.viewer.prefix}{self.project}"
        for step, kind, text in self.read_stored("jobs", query, (inside, self.name)):
            with suppress(ValueError):
                settings = parse_json(text or "")
                return {"step": step, "kind": kind, **settings} if isinstance(settings, dict) else {}
        return {}

    def base_model(self) -> str | None:
        """Returns the name of the base model, as the registration or the program says it."""
        for known in (self.registration(), _read_object(self.files.description)):
            if isinstance(base := known.get("base_model"), str):
                return base
        return None

    def tokenizer(self) -> Path | None:
        """Returns the newest checkpoint's tokenizer file."""
        found = (
            path / "tokenizer.json" for path in _folders(self.files.checkpoints) if path.name.isdecimal()
        )
        return max((path for path in found if path.is_file()), default=None)

    def last_change(self) -> float:
        """Returns when its history was last written, seconds since the epoch; 0: never."""
        times = [_changed(path) for path in (self.files.history, self.files.description, self.files.path)]
        return next((time for time in times if time), 0.0)


@dataclass(frozen=True)
class CheckpointFacts:
    """One checkpoint that is kept."""

    step: int
    size: int
    """Bytes."""
    made_at: float
    job: dict[str, Any]
    """The job that made it; empty for the first."""

    @classmethod
    def read(cls, path: Path) -> CheckpointFacts:
        sizes = [file.stat().st_size for file in path.iterdir() if file.is_file()]
        return cls(int(path.name), sum(sizes), _changed(path), _read_object(path / "job.json"))


@dataclass(frozen=True)
class LifeSign:
    """The state of a run, `alive`, `dead` (it ended in the middle), `finished` or `unreadable`, and its
    evidence.
    """

    state: str
    words: str


def find_runs(
    root: Path,
    viewer: Viewer = EVERYBODY,
    stored: StoredRows = FILES,
    histories: Histories | None = None,
) -> dict[str, RunFiles]:
    """Returns the runs of a data folder, of a run's folder, or of a folder of such folders, by their keys.

    histories: where what is read of them is kept; None: with what is returned.
    """
    found, kept = {}, histories or Histories()
    for place, data_dir in _data_folders(root):
        for path in model_folders(data_dir).values():
            project = _shown(path.parents[1])
            if project.startswith(viewer.prefix):
                own = project.removeprefix(viewer.prefix)
                run = RunFiles(place, own, _shown(path), data_dir, ModelPaths(path), viewer, stored, kept)
                found[run.key] = run
    return found


def life_sign(run: RunFiles) -> LifeSign:
    """Returns whether a run lives, by its server's lock and its jobs."""
    try:
        serving = is_in_use(run.data_dir / "server")
    except OSError:
        serving = False
    jobs = unfinished_jobs(run)
    if serving:
        return LifeSign("alive", f"training: {jobs[0]['phase']}" if jobs else "its server runs")
    if jobs:
        return LifeSign("dead", f"its server is gone, with a job {jobs[0]['state']}")
    if run.viewer.tenant is not None:
        return LifeSign("finished", "no job waits")
    wanted = _read_object(run.data_dir.parent / "settings.json").get("steps")
    made = max(run.history.steps, default=0)
    if isinstance(wanted, int) and made < wanted and not (run.data_dir.parent / "result.json").exists():
        return LifeSign("dead", f"it ended at step {made} of {wanted}")
    return LifeSign("finished", "no server runs, no job waits")


def unfinished_jobs(run: RunFiles) -> list[dict[str, Any]]:
    """Returns the training jobs of a model that are queued or running: id, state, phase, created_at."""
    query = (
        "SELECT job_id, state, phase, created_at FROM jobs "
        "WHERE project = ? AND name = ? AND state IN ('queued', 'running') ORDER BY number"
    )
    inside = f"{run.viewer.prefix}{run.project}"
    rows = run.read_stored("jobs", query, (inside, run.name))
    return [dict(zip(("job_id", "state", "phase", "created_at"), row, strict=True)) for row in rows]


def _open_read_only(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=2.0)


def _data_folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Yields places and data folders: the folder itself, that of the run that it is, those of runs in it."""
    taken = set()
    for parent in (root, *_folders(root)):
        for folder in (parent, parent / ".art", parent / "art"):
            if folder in taken or not any(folder.glob("*/models/*/")):
                continue
            taken.add(folder)
            yield HERE if parent == root else _shown(parent), folder


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(one for one in path.iterdir() if one.is_dir())
    except OSError:
        return []


def _shown(path: Path) -> str:
    """The last name of a path; bytes that are no text are spelt out."""
    return os.fsencode(path.name).decode("utf-8", "backslashreplace")


def _read_object(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        value = read_json(path) if path.is_file() else None
        return value if isinstance(value, dict) else {}
    return {}


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

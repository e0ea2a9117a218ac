"""What outlives this process: sessions, training runs, their requests in order, and saved checkpoints.

SQLite in WAL mode; one thread owns the connection. A request is written down before it is answered, with its
body; the bodies of batches stay until the step that they are part of is on disk.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from art.errors import DiskError
from art.process.files import create_private, disk_error
from art.process.steady_time import steady_time

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    session_id  TEXT PRIMARY KEY, owner TEXT NOT NULL, created_at REAL NOT NULL, seen_at REAL NOT NULL,
    ended       TEXT, detail TEXT, display_name TEXT, project_id TEXT, metadata TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS runs (
    run_id  TEXT PRIMARY KEY, session_id TEXT NOT NULL, owner TEXT NOT NULL, base_model TEXT NOT NULL,
    name    TEXT NOT NULL, lora TEXT NOT NULL, metadata TEXT NOT NULL, created_at REAL NOT NULL,
    used_at REAL NOT NULL, next_seq INTEGER NOT NULL, step INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS requests (
    request_id TEXT PRIMARY KEY, owner TEXT NOT NULL, run_id TEXT NOT NULL, seq INTEGER NOT NULL,
    kind       TEXT NOT NULL, body BLOB, added INTEGER NOT NULL DEFAULT 0, state TEXT NOT NULL,
    result     BLOB, created_at REAL NOT NULL, UNIQUE (run_id, seq)
);
DROP INDEX IF EXISTS added_requests;
CREATE INDEX IF NOT EXISTS added_in_order ON requests (run_id, added, seq);
CREATE TABLE IF NOT EXISTS checkpoints (
    path  TEXT PRIMARY KEY, owner TEXT NOT NULL, run_id TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    model TEXT NOT NULL, step INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL,
    public INTEGER NOT NULL DEFAULT 0, metadata TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS losses (
    loss_id TEXT PRIMARY KEY, owner TEXT NOT NULL, session_id TEXT NOT NULL, body TEXT NOT NULL,
    created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS samplers (
    sampler_id TEXT PRIMARY KEY, owner TEXT NOT NULL, session_id TEXT NOT NULL, base_model TEXT NOT NULL,
    path       TEXT, model TEXT NOT NULL, step INTEGER, created_at REAL NOT NULL,
    clones     INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS open_samples (
    request_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS leftovers (
    model TEXT PRIMARY KEY, owner TEXT NOT NULL, created_at REAL NOT NULL, released INTEGER NOT NULL DEFAULT 0
);
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TinkerSession:
    session_id: str
    owner: str
    created_at: float
    seen_at: float
    """When the client was heard last."""
    ended: str | None = None
    """How: success, errored, interrupted or expired; None: it goes on."""
    detail: str | None = None
    display_name: str | None = None
    project_id: str | None = None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A training run: one adapter."""

    run_id: str
    session_id: str
    owner: str
    base_model: str
    name: str
    """The name of the model that trains it, in the project of all runs."""
    lora: Mapping[str, Any]
    metadata: Mapping[str, Any]
    created_at: float
    used_at: float
    next_seq: int = 0
    """The request that is carried out next; 0 is the one that begins the run. `COPY`, `UNLOADED`: none is."""
    step: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedRequest:
    request_id: str
    owner: str
    run_id: str
    seq: int
    kind: str
    body: bytes | None
    added: bool = False
    """Its gradient was added to those that the trainer holds."""
    state: str = "waiting"
    """waiting, done or failed."""
    result: bytes | None = None
    created_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    path: str
    """`tinker://RUN/weights/NAME` or `tinker://RUN/sampler_weights/NAME`."""
    owner: str
    run_id: str
    kind: str
    name: str
    model: str
    step: int
    created_at: float
    expires_at: float | None = None
    public: bool = False
    metadata: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    sampler_id: str
    owner: str
    session_id: str
    base_model: str
    path: str | None
    model: str
    """What the server is asked for."""
    step: int | None
    created_at: float
    clones: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptLoss:
    """A custom loss of a session."""

    loss_id: str
    owner: str
    session_id: str
    body: str
    """The request that made it, which was checked."""
    created_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenSample:
    """A request for samples whose result was not fetched yet."""

    request_id: str
    session_id: str
    created_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    """A model that no run trains any more, until it is freed."""

    model: str
    owner: str
    created_at: float
    released: bool = False
    """The trainer has forgotten it; its files are still needed."""


COPY = -1
"""The next request of a run that only holds copies of weights."""
UNLOADED = -2
"""The next request of a run that was unloaded."""
Row = TypeVar(
    "Row", TinkerSession, Run, QueuedRequest, SavedCheckpoint, Sampler, KeptLoss, Leftover, OpenSample
)
T = TypeVar("T")
_TABLES: Mapping[type[Any], str] = {
    TinkerSession: "sessions",
    Run: "runs",
    QueuedRequest: "requests",
    SavedCheckpoint: "checkpoints",
    Sampler: "samplers",
    KeptLoss: "losses",
    Leftover: "leftovers",
    OpenSample: "open_samples",
}
_JSON = frozenset({"metadata", "lora"})
_FLAGS = frozenset({"added", "public", "released"})


class TinkerStore:
    """The tables. Every method but `close` raises DiskError where the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tinker-store")
        self._connection = self._thread.submit(self._open).result()

    def _open(self) -> sqlite3.Connection:
        try:
            create_private(self.path)
            connection = sqlite3.connect(self.path, isolation_level=None)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise self._failure(error) from error
        return connection

    def _failure(self, error: Exception) -> DiskError:
        return disk_error(error, self.path, "the record of Tinker's sessions cannot be used")

    async def run(self, work: Callable[[Tables], T]) -> T:
        """Has the store's thread do the work in one transaction: all of it is written, or nothing."""

        def inside() -> T:
            connection = self._connection
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    done = work(Tables(connection))
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._failure(error) from error
            return done

        return await asyncio.get_running_loop().run_in_executor(self._thread, inside)

    def close(self) -> None:
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()


class Tables:
    """The statements of one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, row: Any) -> bool:
        """Writes a row. Returns False where its key is there already; nothing changes then."""
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        values = {name: json.dumps(value) if name in _JSON else value for name, value in values.items()}
        names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        text = f"INSERT OR IGNORE INTO {_TABLES[type(row)]} ({names}) VALUES ({marks})"
        return self._connection.execute(text, values).rowcount == 1

    def find(self, kind: type[Row], *, without: str = "", **where: Any) -> Row | None:
        """The row with these values, or None."""
        found = self.select(kind, without=without, **where)
        return found[0] if found else None

    def select(
        self, kind: type[Row], *, order: str = "created_at", without: str = "", **where: Any
    ) -> list[Row]:
        """The rows with these values; None stands for NULL. without: a field that is not read, and None."""
        names = [one.name for one in fields(kind)]
        columns = ", ".join(f"NULL AS {name}" if name == without else name for name in names)
        terms = [f"{name} IS :{name}" for name in where]
        text = f"SELECT {columns} FROM {_TABLES[kind]}" + (f" WHERE {' AND '.join(terms)}" if terms else "")
        return [_read(kind, row) for row in self._connection.execute(f"{text} ORDER BY {order}", where)]

    def change(self, kind: type[Row], where: Mapping[str, Any], **values: Any) -> int:
        """Sets values of the rows with these keys. Returns how many they are."""
        values = {name: json.dumps(value) if name in _JSON else value for name, value in values.items()}
        assigned = ", ".join(f"{name} = :{name}" for name in values)
        terms = " AND ".join(f"{name} IS :_{name}" for name in where)
        text = f"UPDATE {_TABLES[kind]} SET {assigned} WHERE {terms}"
        return self._connection.execute(text, {**values, **{f"_{k}": v for k, v in where.items()}}).rowcount

    def delete(self, kind: type[Row], **where: Any) -> int:
        """Removes the rows with these values. Returns how many they were."""
        terms = " AND ".join(f"{name} IS :{name}" for name in where)
        return self._connection.execute(f"DELETE FROM {_TABLES[kind]} WHERE {terms}", where).rowcount

    def forget_bodies(self, run_id: str, before: int) -> int:
        """Drops the bodies of a run's added requests up to a number: they are never sent again. Returns how
        many they were. Of other requests that ended there is none.
        """
        text = "UPDATE requests SET body = NULL, added = 0 WHERE run_id = ? AND added = 1 AND seq <= ?"
        return self._connection.execute(text, (run_id, before)).rowcount

    def waiting_runs(self, *, ended: bool) -> set[str]:
        """The ids of runs with requests that wait: of sessions that have ended, or of those that go on."""
        text = f"""SELECT run_id FROM requests JOIN runs USING (run_id) JOIN sessions USING (session_id)
                   WHERE state = 'waiting' AND ended IS {"NOT NULL" if ended else "NULL"}"""
        return {row[0] for row in self._connection.execute(text)}

    def forget_ended(self) -> None:
        """Removes what only open sessions need."""
        for table in ("samplers", "losses", "open_samples"):
            self._connection.execute(
                f"""DELETE FROM {table} WHERE session_id IN
                    (SELECT session_id FROM sessions WHERE ended IS NOT NULL)"""
            )

    def newest_sampled(self, model: str, most: int) -> set[int]:
        """The steps of a model's newest samplers without a name: so many at most."""
        text = """SELECT step FROM samplers WHERE path IS NULL AND (model GLOB ? OR model GLOB ?)
                  ORDER BY rowid DESC LIMIT ?"""
        return {row[0] for row in self._connection.execute(text, (f"{model}@*", f"*/{model}@*", most))}

    def forget_results(self, before: float) -> int:
        """Removes the requests that ended and were made before a time. Returns how many they were."""
        text = "DELETE FROM requests WHERE state != 'waiting' AND added = 0 AND created_at < ?"
        return self._connection.execute(text, (before,)).rowcount


def _read(kind: type[Row], row: sqlite3.Row) -> Row:
    values: dict[str, Any] = dict(row)
    for name in _JSON & values.keys():
        values[name] = json.loads(values[name])
    for name in _FLAGS & values.keys():
        values[name] = bool(values[name])
    return kind(**values)


def now() -> float:
    """Returns Unix seconds."""
    return steady_time()

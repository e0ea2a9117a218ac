"""The ledger: every completion, written down once, before its reply leaves the server.

`commits.py` commits them, many at once. SQLite's write-ahead log keeps what is committed when the process is
killed at any moment (a power cut may take the last moments).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from art.errors import ConfigurationError, NotFoundError
from art.server.ledger.commits import Commits, LedgerError
from art.server.ledger.schema import (
    COLUMNS,
    CREATE,
    MIGRATE,
    SCHEMA_VERSION,
    SampleRecord,
    Statement,
    from_row,
)
from art.server.tenants.tenancy import Tenant

T = TypeVar("T")

_BUSY_SECONDS = 30.0
_VARIABLES = 500
"""Ids in one SELECT ... IN (...)."""


class Ledger:
    """Samples on disk. One event loop owns it."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises: ConfigurationError when another version of ART wrote it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._writing = _connect(path)
        _prepare(self._writing, path)
        self._reading = _connect(path)
        self._reading.execute("PRAGMA query_only = ON")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="ledger-read")
        self._commits = Commits(self._writing, path)
        self._closed = False

    async def append(self, records: Sequence[SampleRecord], also: Sequence[Statement] = ()) -> None:
        """Return once the records are committed, and with them what `also` writes. Raises: LedgerError."""
        await self._commits.append(records, also)

    def note(self, also: Sequence[Statement]) -> None:
        """Hand over what nobody waits for: committed before anything that is appended later.

        What cannot be written is told by the log; a closed ledger takes nothing.
        """
        self._commits.note(also)

    async def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """What a query of the tables beside the samples finds. Raises: LedgerError."""
        return await self._read(lambda: self._reading.execute(query, values).fetchall())

    async def samples(self, sample_ids: Sequence[str], *, tenant: Tenant = None) -> list[SampleRecord]:
        """Records in the order of the ids, of one tenant, or for the operator of anybody.

        Raises: NotFoundError naming the ids that are unknown; another tenant's are that, too.
        """
        found = await self._read(lambda: _load(self._reading, sample_ids))
        missing = [
            sample_id
            for sample_id in sample_ids
            if sample_id not in found or (tenant is not None and found[sample_id].tenant != tenant)
        ]
        if missing:
            shown = ", ".join(map(repr, missing[:5])) + (
                f" and {len(missing) - 5} more" if missing[5:] else ""
            )
            raise NotFoundError(f"no such sample: {shown}", status=404, code="sample_not_found")
        return [found[sample_id] for sample_id in sample_ids]

    async def known(self, sample_ids: Sequence[str], *, tenant: Tenant) -> dict[str, SampleRecord]:
        """Those of the samples that there are, of this tenant alone (None: the operator's own)."""
        found = await self._read(lambda: _load(self._reading, sample_ids))
        return {name: record for name, record in found.items() if record.tenant == tenant}

    async def rollout(self, rollout_id: str, *, tenant: Tenant = None) -> list[SampleRecord]:
        """The samples of a rollout in the order of their creation; empty when there are none.

        The operator is given those of every tenant that used the id.
        """
        query = "SELECT sample_id FROM samples WHERE rollout_id = ?1 AND ?2 IN (tenant, '') ORDER BY rowid"
        values = (rollout_id, tenant or "")
        ids = await self._read(lambda: [row[0] for row in self._reading.execute(query, values)])
        return await self.samples(ids)

    async def find_turn(self, turn_keys: Sequence[bytes], rollout_id: str | None) -> SampleRecord | None:
        """The newest sample that ended with the first known of these turns; one of the rollout first."""
        query = "SELECT MAX(rowid), sample_id FROM samples WHERE turn_key = ?"

        def read() -> SampleRecord | None:
            for key in turn_keys:
                tries: list[tuple[str, tuple[Any, ...]]] = [(query, (key,))]
                if rollout_id is not None:
                    tries.insert(0, (query + " AND rollout_id = ?", (key, rollout_id)))
                for text, values in tries:
                    sample_id = self._reading.execute(text, values).fetchone()[1]
                    if sample_id is not None:
                        return _load(self._reading, [sample_id])[sample_id]
            return None

        return await self._read(read)

    async def is_empty(self) -> bool:
        """Whether no sample was ever written."""
        query = "SELECT 1 FROM samples LIMIT 1"
        return await self._read(lambda: self._reading.execute(query).fetchone() is None)

    async def has_rollout(self, rollout_id: str, *, tenant: Tenant = None) -> bool:
        """Whether the asker's rollout of this id has a sample."""
        query = "SELECT 1 FROM samples WHERE rollout_id = ? AND tenant IS ? LIMIT 1"
        values = (rollout_id, tenant)
        return await self._read(lambda: self._reading.execute(query, values).fetchone() is not None)

    async def _read(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, work)
        except sqlite3.Error as error:
            raise LedgerError(f"cannot read {self.path}: {error}") from error

    async def close(self) -> None:
        """Commit what waits, then close. Calling it twice is allowed."""
        if self._closed:
            return
        self._closed = True
        await self._commits.close(seconds=_BUSY_SECONDS)
        self._reader.shutdown(wait=True)
        self._reading.close()
        self._writing.close()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            # One transaction: a kill in the middle leaves an empty file, not half a table.
            connection.executescript(f"BEGIN; {CREATE} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        while version in MIGRATE:
            connection.executescript(
                f"BEGIN; {MIGRATE[version]} PRAGMA user_version = {version + 1}; COMMIT;"
            )
            version += 1
        if version not in (0, SCHEMA_VERSION):
            raise ConfigurationError(
                f"the ledger {path} has version {version}, this ART knows {SCHEMA_VERSION}: use the ART that "
                "wrote it, or another data folder"
            )
    except sqlite3.DatabaseError as error:
        raise ConfigurationError(
            f"{path} is not a ledger or is damaged ({error}): move it away, or use another data folder"
        ) from error


def _load(connection: sqlite3.Connection, sample_ids: Sequence[str]) -> dict[str, SampleRecord]:
    """The wanted records and, on the way, every record that they share ids with."""
    rows: dict[str, tuple[Any, ...]] = {}
    wanted = list(dict.fromkeys(sample_ids))
    while wanted:
        parents: dict[str, None] = {}
        for part in _parts(wanted):
            for row in connection.execute(
                f"SELECT {COLUMNS} FROM samples WHERE sample_id IN ({_marks(part)})", part
            ):
                rows[row[0]] = row
                if row[9]:
                    parents[row[7]] = None
        wanted = [parent for parent in parents if parent not in rows]
    records: dict[str, SampleRecord] = {}
    for sample_id in rows:
        chain = [sample_id]
        while chain[-1] not in records and rows[chain[-1]][9]:
            chain.append(str(rows[chain[-1]][7]))
        for member in reversed(chain):
            if member not in records:
                row = rows[member]
                records[member] = from_row(row, records.get(str(row[7])))
    return records


def _parts(values: Sequence[T]) -> list[Sequence[T]]:
    return [values[start : start + _VARIABLES] for start in range(0, len(values), _VARIABLES)]


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))

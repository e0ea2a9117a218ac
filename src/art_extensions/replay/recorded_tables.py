"""The tables of jobs and samples that a server kept: SQLite in its data folder, or a database. They are read
and never written.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from art.errors import ARTError
from art.process.files import take_lock
from art.process.running_server import LOCK_FILE
from art.server.data_folder import DataLayout
from art.server.ledger.ledger import open_read_only, read_samples
from art.server.ledger.schema import SampleRecord
from art.server.settings import ServerSettings, resolve_database
from art.server.shared_store import open_recorded

Table = Literal["jobs", "samples"]


class ReplayError(ARTError):
    """A step cannot be done again: a record is missing, or was never made."""


class RecordedTables(Protocol):
    """The tables of one data folder. Methods raise ReplayError."""

    def shown(self, table: Table) -> str:
        """Returns what messages call the place of a table."""
        ...

    def exists(self, table: Table) -> bool:
        """Returns whether there is such a table."""
        ...

    def is_served(self) -> bool:
        """Returns whether a server may be at work on its unfinished jobs."""
        ...

    def rows(self, table: Table, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Returns the rows of a query, in which `?` stands for a value. Not beside an event loop."""
        ...

    def samples(self, names: Sequence[str]) -> dict[str, SampleRecord]:
        """Returns the readable ones of the samples."""
        ...


@dataclass(frozen=True, slots=True)
class TablesInFiles:
    """The SQLite files of a data folder."""

    layout: DataLayout

    def shown(self, table: Table) -> str:
        return str(self._path(table))

    def exists(self, table: Table) -> bool:
        return self._path(table).exists()

    def is_served(self) -> bool:
        lock = self.layout.jobs_file.parent / LOCK_FILE
        if not lock.exists():
            return False
        try:
            descriptor = take_lock(lock, shared=True)
        except OSError:  # a folder that nobody may write to has no server
            return False
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is None

    def rows(self, table: Table, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        path = self._path(table)
        try:
            with closing(open_read_only(path)) as connection:
                return connection.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise ReplayError(f"{path} cannot be read: {error}") from error

    def samples(self, names: Sequence[str]) -> dict[str, SampleRecord]:
        return read_samples(self.layout.ledger_file, names)

    def _path(self, table: Table) -> Path:
        return self.layout.jobs_file if table == "jobs" else self.layout.ledger_file


@dataclass(frozen=True, slots=True)
class TablesInDatabase:
    """The tables of a database, in which unfinished jobs may be another machine's."""

    url: str = field(repr=False)
    data_dir: Path

    def shown(self, table: Table) -> str:
        return f"the {table} of the database"

    def exists(self, table: Table) -> bool:
        return True

    def is_served(self) -> bool:
        return True

    def rows(self, table: Table, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        async def read() -> list[tuple[Any, ...]]:
            async with open_recorded(self.url, self.data_dir) as ledger:
                return await ledger.rows(query, tuple(values))

        return asyncio.run(read())

    def samples(self, names: Sequence[str]) -> dict[str, SampleRecord]:
        async def read() -> dict[str, SampleRecord]:
            async with open_recorded(self.url, self.data_dir) as ledger:
                return (await ledger.find(names)).records

        return asyncio.run(read())


def tables_of(layout: DataLayout, database: str | None) -> RecordedTables:
    """The tables of the database that is named; else the folder's files, and where it has none, those of the
    database that the environment names.
    """
    if database is None and not layout.jobs_file.exists():
        database = resolve_database(ServerSettings())
    return TablesInFiles(layout) if database is None else TablesInDatabase(database, layout.data_dir)

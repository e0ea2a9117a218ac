"""Where a test's ledger and jobs are: SQLite in a folder, or a database of a real Postgres."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from private_postgres import PrivatePostgres

from art.server.jobs.job_store import JobStore
from art.server.jobs.job_table import JobTable
from art.server.ledger.face import SampleLedger
from art.server.ledger.ledger import Ledger

if TYPE_CHECKING:
    from art_extensions.postgres.database import PostgresDatabase


class Home:
    """One ledger and one table of jobs, which may be opened several times."""

    def __init__(self, folder: Path, url: str | None = None, server: PrivatePostgres | None = None) -> None:
        self.folder, self.url, self.server = folder, url, server
        self._databases: list[PostgresDatabase] = []

    @classmethod
    def of_child(cls) -> Home:
        """In a process that was given `environment`."""
        return cls(Path(os.environ["TEST_HOME"]), os.environ.get("TEST_DATABASE") or None)

    @property
    def environment(self) -> dict[str, str]:
        return {"TEST_HOME": str(self.folder), "TEST_DATABASE": self.url or ""}

    @property
    def ledger_file(self) -> Path:
        return self.folder / "server" / "ledger.sqlite"

    async def database(self) -> PostgresDatabase:
        from art_extensions.postgres.database import PostgresDatabase, parse_address

        assert self.url is not None
        self._databases.append(await PostgresDatabase.open(parse_address(self.url)))
        return self._databases[-1]

    async def open_ledger(self, *, removes: bool = False) -> SampleLedger:
        if self.url is None:
            return Ledger(self.ledger_file, removes=removes)
        from art_extensions.postgres.samples import PostgresLedger

        return await PostgresLedger.open(await self.database(), self.folder)

    @property
    def jobs_file(self) -> Path:
        return self.folder / "server" / "jobs.sqlite"

    async def open_jobs(self) -> JobTable:
        if self.url is None:
            return JobStore(self.jobs_file)
        from art_extensions.postgres.jobs import PostgresJobStore

        return await PostgresJobStore.open(await self.database(), epoch=None)

    def sql(self, query: str, *, of_jobs: bool = False) -> list[tuple[Any, ...]]:
        """Rows as another program sees them; numbers as numbers, NULL as None."""
        if self.server is not None and self.url is not None:
            lines = self.server.sql(query, database=self.url.rpartition("/")[2]).split("\n")
            return [tuple(_value(text) for text in line.split("|")) for line in lines]
        with sqlite3.connect(self.jobs_file if of_jobs else self.ledger_file) as connection:
            return connection.execute(query).fetchall()

    async def close(self) -> None:
        for database in self._databases:
            await database.close()
        self._databases.clear()


def _value(text: str) -> Any:
    if not text:
        return None
    return int(text) if text.lstrip("-").isdigit() else text

"""What a server opens where a database was named: ledger, jobs and the controller's lock in one Postgres."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.errors import require_extra
from art_extensions.postgres.database import DatabaseError, PostgresDatabase, numbered, parse_address
from art_extensions.postgres.gateways import CONTROLLER_VERSION, CREATE_CONTROLLER, ControllerLock
from art_extensions.postgres.jobs import PostgresJobStore
from art_extensions.postgres.published import Publisher, prepare_published
from art_extensions.postgres.samples import PostgresLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from art.server.catalog import Catalog
    from art.server.checkpoints.registered_models import RegisteredModels
    from art.server.shared_store import RunningEngines

_log = logging.getLogger(__name__)
_PAGE_SECONDS = 20.0
"""Seconds that a page waits for rows."""


class StoredInPostgres:
    """Reads jobs and samples for the pages of the runs, which are made in threads
    (`art_extensions.ui.run_files.StoredRows`).
    """

    def __init__(self, database: PostgresDatabase, data_dir: Path) -> None:
        """Belongs to the event loop that runs now. data_dir: whose rows the database has."""
        self._database, self._data_dir = database, data_dir.resolve()
        self._loop = asyncio.get_running_loop()

    def read(
        self, data_dir: Path, part: str, query: str, values: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """See `StoredRows.read`. Blocks; not for the thread of the event loop."""
        if data_dir.resolve() != self._data_dir:
            return []
        asking = self._database.rows(numbered(query), *values)
        asked = asyncio.run_coroutine_threadsafe(asking, self._loop)
        try:
            return asked.result(_PAGE_SECONDS)
        except (DatabaseError, TimeoutError) as error:
            asked.cancel()
            _log.warning("a page is shown without what the database has: %s", error or "no answer in time")
            return []

    def json_without(self, column: str, names: Sequence[str]) -> str:
        """See `StoredRows.json_without`."""
        fields = ", ".join(f"'{name}'" for name in names)
        return f"CASE WHEN {column} LIKE '{{%' THEN ({column}::jsonb - ARRAY[{fields}])::text END"


@dataclass(frozen=True, slots=True)
class SharedDatabase:
    """The database of a server that is the controller."""

    database: PostgresDatabase
    lock: ControllerLock

    @property
    def shown(self) -> str:
        """See `SharedStore.shown`."""
        return self.database.address.shown

    @property
    def control_lost(self) -> asyncio.Event:
        """See `SharedStore.control_lost`."""
        return self.lock.lost

    async def require_control(self) -> None:
        """See `SharedStore.require_control`."""
        await self.lock.require()

    async def publish(
        self,
        url: str,
        *,
        key: str,
        catalog: Catalog,
        models: RegisteredModels,
        engines: Callable[[], RunningEngines],
    ) -> None:
        """Tells the gateways where this server is and what it serves, until cancelled.

        Raises: ConfigurationError, DatabaseError.
        """
        await prepare_published(self.database)
        publisher = Publisher(
            self.database, self.lock, url, key=key, catalog=catalog, models=models, engines=engines
        )
        try:
            await publisher.run()
        finally:
            await publisher.close()

    async def open_ledger(self, data_dir: Path) -> PostgresLedger:
        """Raises: ConfigurationError, DatabaseError."""
        return await PostgresLedger.open(self.database, data_dir)

    async def open_jobs(self) -> PostgresJobStore:
        """Raises: ConfigurationError, DatabaseError."""
        return await PostgresJobStore.open(self.database, epoch=self.lock.epoch)

    def stored_rows(self, data_dir: Path) -> StoredInPostgres:
        """Returns what reads for the pages of the runs."""
        return StoredInPostgres(self.database, data_dir)

    def described(self) -> dict[str, Any]:
        """Returns what `/health` shows the operator."""
        return {"database": {"address": self.shown, "epoch": self.lock.epoch}}

    async def close(self) -> None:
        """Lets the next server have the lock."""
        await self.lock.release()
        await self.database.close()


@contextlib.asynccontextmanager
async def open_gateway_database(url: str) -> AsyncIterator[PostgresDatabase]:
    """The database of a gateway, whose tables a controller makes or has made.

    Raises: ConfigurationError, DatabaseError, MissingExtraError.
    """
    require_extra("postgres", "a gateway")
    database = await PostgresDatabase.open(parse_address(url))
    try:
        await database.prepare_tables("controller", CONTROLLER_VERSION, CREATE_CONTROLLER)
        await prepare_published(database)
        yield database
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def open_recorded_ledger(url: str, data_dir: Path) -> AsyncIterator[PostgresLedger]:
    """The samples of a database, in sessions that may write nothing.

    Raises: DatabaseError, MissingExtraError.
    """
    require_extra("postgres", "a database of Postgres")
    database = await PostgresDatabase.open(parse_address(url), only_reads=True)
    ledger = PostgresLedger(database, data_dir)
    try:
        yield ledger
    finally:
        await ledger.close()
        await database.close()


async def open_shared(url: str, ended: asyncio.Future[None] | None) -> SharedDatabase | None:
    """Returns the database once this server is the controller; None where it was asked to end meanwhile.

    Raises: DatabaseError, ConfigurationError, MissingExtraError.
    """
    require_extra("postgres", "a database of Postgres")
    database = await PostgresDatabase.open(parse_address(url))

    def tell_waiting(holder: str) -> None:
        _log.warning("server %s is the controller: this one waits, and takes over when that ends", holder)

    waiting = asyncio.ensure_future(ControllerLock.acquire(database, on_wait=tell_waiting))
    try:
        futures: list[asyncio.Future[Any]] = [waiting, *([] if ended is None else [ended])]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return SharedDatabase(database, waiting.result())
    finally:
        if not waiting.done() or waiting.exception() is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await database.close()
    return None

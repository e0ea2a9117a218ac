"""What a server opens where a database was named: ledger, jobs and the controller's lock in one Postgres."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art.errors import require_extra
from art.server.postgres.database import Database, parse_address
from art.server.postgres.gateways import ControllerLock
from art.server.postgres.jobs import PostgresJobStore
from art.server.postgres.samples import PostgresLedger

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedDatabase:
    """The database of a server that is the controller."""

    database: Database
    lock: ControllerLock

    async def open_ledger(self, data_dir: Path) -> PostgresLedger:
        """Raises: ConfigurationError, DatabaseError."""
        return await PostgresLedger.open(self.database, data_dir)

    async def open_jobs(self) -> PostgresJobStore:
        """Raises: ConfigurationError, DatabaseError."""
        return await PostgresJobStore.open(self.database, epoch=self.lock.epoch)

    def described(self) -> dict[str, Any]:
        """Returns what `/health` shows the operator."""
        return {"database": {"address": self.database.address.shown, "epoch": self.lock.epoch}}

    async def close(self) -> None:
        """Lets the next server have the lock."""
        await self.lock.release()
        await self.database.close()


async def open_shared(url: str | None, ended: asyncio.Future[None] | None) -> SharedDatabase | None:
    """Returns the database once this server is the controller; None where none is named.

    ended: done when the server was asked to end; then the lock may not be held.
    Raises: DatabaseError, ConfigurationError, MissingExtraError.
    """
    if url is None:
        return None
    require_extra("postgres", "a database of Postgres")
    database = await Database.open(parse_address(url))

    def tell_waiting(holder: str) -> None:
        _log.warning("server %s is the controller: this one waits, and takes over when that ends", holder)

    waiting = asyncio.ensure_future(ControllerLock.acquire(database, on_wait=tell_waiting))
    try:
        told: list[asyncio.Future[Any]] = [waiting, *([] if ended is None else [ended])]
        await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return SharedDatabase(database, waiting.result())
    finally:
        if not waiting.done() or waiting.exception() is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await database.close()
    return None

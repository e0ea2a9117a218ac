"""The controller's lock: of several servers over one database, one runs jobs and moves adapters.

It holds an advisory lock of Postgres by a connection of its own. When its process dies, Postgres ends the
session and the next server that waits has the lock. Each holder has a number, its *epoch*, one above the
last; every commit of a job reads it. A controller that lost its lock without noticing (its session was ended,
the network was cut) thus commits nothing any more.

A holder whose session ended takes the lock again: it goes on, with its epoch, unless another server has been
the controller since. So an outage of the database is a wait, as it is for a commit.

    session ended by       the next server has the lock         the holder
    its death              at once: the kernel ends the session
    a dead machine         within 12 s: keepalives of TCP
    a cut network          within 12 s                          ends after 30 s, or when it hears of the next
    the database's end     as soon as either asks first         goes on if the database is back within 30 s
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from art.server.shared_store import LostControlError
from art_extensions.postgres.database import (
    Connection,
    DatabaseAddress,
    DatabaseError,
    PostgresDatabase,
    connect,
    is_broken,
    known_errors,
)

_log = logging.getLogger(__name__)

CONTROLLER_VERSION = 1
CREATE_CONTROLLER = """
CREATE TABLE controller (
    one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
    epoch BIGINT NOT NULL,
    holder TEXT NOT NULL,
    since DOUBLE PRECISION NOT NULL,
    url TEXT NOT NULL DEFAULT ''
);
INSERT INTO controller VALUES (true, 0, '', 0);
"""
_LOCK = 7_273_003
"""The advisory lock of the controller, in the database's own numbers."""
_TRY_SECONDS = 0.5
_WATCH_SECONDS = 2.0
_ANSWER_SECONDS = 4.0
_KEEPALIVE = {"tcp_keepalives_idle": "4", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "4"}
"""Seconds, and how often: the database forgets a machine that is gone within 12 s."""


class ControllerLock:
    """The lock while it is held. `acquire` it."""

    def __init__(
        self, connection: Connection, epoch: int, address: DatabaseAddress, *, patience: float
    ) -> None:
        """patience: seconds in which the database may be away."""
        self.epoch, self._connection, self._address = epoch, connection, address
        self._patience = patience
        self._asking = asyncio.Lock()
        self.lost = asyncio.Event()
        """An event, set once the lock is not known to be held any more."""
        self._watching = asyncio.create_task(self._watch(), name="controller's lock")

    @classmethod
    async def acquire(cls, database: PostgresDatabase, *, on_wait: Callable[[str], None]) -> ControllerLock:
        """Waits, for as long as another server holds it; `on_wait` is told who that is, once.

        Raises: DatabaseError when there is no database to wait for, ConfigurationError.
        """
        await database.prepare_tables("controller", CONTROLLER_VERSION, CREATE_CONTROLLER)
        announced = False
        while True:
            connection = await connect(database.address, **_KEEPALIVE)
            try:
                while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
                    if not announced:
                        announced = True
                        on_wait(str(await connection.fetchval("SELECT holder FROM controller")))
                    await asyncio.sleep(_TRY_SECONDS)
                epoch = await _next_epoch(connection)
                return cls(connection, epoch, database.address, patience=database.patience)
            except known_errors() as error:
                connection.terminate()
                if not is_broken(error):
                    why = database.address.hide_password(str(error))
                    raise DatabaseError(f"no lock of {database.address.shown}: {why}") from error
            except asyncio.CancelledError:
                connection.terminate()
                raise
            await asyncio.sleep(_TRY_SECONDS)

    async def release(self) -> None:
        """Ends the session: the next server has the lock at once."""
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        with contextlib.suppress(*known_errors()):
            await self._connection.close(timeout=_ANSWER_SECONDS)

    async def require(self) -> None:
        """Refuses where this server is not the controller: asked before a step is committed. Waits for a
        database that is away, so long as `patience` says.

        Raises: LostControlError.
        """
        if self.lost.is_set() or not await self._is_held():
            self.lost.set()
            raise LostControlError(
                f"another server took over from this one (epoch {self.epoch} of {self._address.shown}), or "
                f"the database was away for {self._patience:g} s: the next controller does what was under way"
            )

    async def _watch(self) -> None:
        while True:
            if not await self._is_held():
                _log.error("the controller's lock in %s is lost: this server ends", self._address.shown)
                self.lost.set()
                return
            await asyncio.sleep(_WATCH_SECONDS)

    async def _is_held(self) -> bool:
        """Asks by the session that has the lock: as long as that lives, it has it."""
        async with self._asking:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    return bool(await _ask_epoch(self._connection) == self.epoch)
            except known_errors() as error:
                self._connection.terminate()
                why = self._address.hide_password(str(error) or type(error).__name__)
                _log.warning(
                    "the session with the controller's lock in %s ended (%s): it is taken again",
                    self._address.shown,
                    why,
                )
            return await self._hold_again()

    async def _hold_again(self) -> bool:
        """Takes the lock by a new session, for as long as `patience` says. Returns False where another server
        has been the controller meanwhile: each gives itself a number once it has the lock.
        """
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            with contextlib.suppress(*known_errors()):
                connection = await connect(self._address, **_KEEPALIVE)
                try:
                    acquired = await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK)
                    if await _ask_epoch(connection) != self.epoch:
                        return False
                    if acquired:
                        self._connection, connection = connection, None
                        _log.warning("the controller's lock in %s is held again", self._address.shown)
                        return True
                finally:
                    if connection is not None:
                        connection.terminate()
            await asyncio.sleep(_TRY_SECONDS)
        return False


async def _ask_epoch(connection: Connection) -> Any:
    return await connection.fetchval("SELECT epoch FROM controller")


async def _next_epoch(connection: Connection) -> int:
    """Waits until no commit of an earlier controller is under way: each holds the row."""
    query = "UPDATE controller SET epoch = epoch + 1, holder = $1, since = $2, url = '' RETURNING epoch"
    return int(await connection.fetchval(query, f"{socket.gethostname()}:{os.getpid()}", time.time()))


async def require_epoch(connection: Connection, epoch: int) -> None:
    """Refuses a transaction whose server is not the controller. One that is stays it until the end.

    Raises: LostControlError.
    """
    now = await connection.fetchval("SELECT epoch FROM controller FOR SHARE")
    if now != epoch:
        raise LostControlError(
            f"another server is the controller (epoch {now}, this one had {epoch}): nothing is committed here"
        )

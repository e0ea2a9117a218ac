"""Connections to Postgres, and transactions that happen exactly once although a connection may break at any
moment.

A connection that breaks while it commits leaves open whether it did. So each `CommitLane` counts its
transactions in a row of its own, written by the transaction itself:

    begin, the work, UPDATE lanes SET number = 7, commit    -> the connection breaks
    begin, SELECT number FROM lanes FOR UPDATE              -> 7: it was committed; 6: it is done again

The lock on the row waits for a session that is still at work on the first try. A transaction's id
(`pg_xact_status`) would not do: after a crash of Postgres another transaction may be given the same one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit
from uuid import uuid4

from art.errors import ARTError, ConfigurationError, extra_needed

_log = logging.getLogger(__name__)

T = TypeVar("T")
Connection = Any
"""A connection of asyncpg, which has no types."""

SCHEMA = "art"
"""The schema of every table."""
CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 60.0
PATIENCE_SECONDS = 30.0
"""Seconds that a server waits for an unreachable database before those who wait get an error."""
_AGAIN_SECONDS = 0.1
_READERS = 4
_FORGOTTEN_SECONDS = 7 * 86_400.0
"""Seconds since a server opened its lane after which the lane is removed."""
_NOW = "extract(epoch FROM now())::float8"
"""Seconds of the database's clock, which all servers share."""
_MOST_CACHED = 256
_LANES = """
CREATE TABLE IF NOT EXISTS lanes (
    lane TEXT PRIMARY KEY,
    number BIGINT NOT NULL,
    opened_at DOUBLE PRECISION NOT NULL
);
CREATE TABLE IF NOT EXISTS versions (part TEXT PRIMARY KEY, version INTEGER NOT NULL);
"""
_PREPARATION = 7_273_001
"""The advisory lock of whoever creates tables."""


class DatabaseError(ARTError):
    """The database cannot be reached, or refused a statement."""


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The address of a database. Nothing that shows it shows the password."""

    url: str = field(repr=False)
    shown: str
    """The address without the user's password and the options."""

    def hide_password(self, text: str) -> str:
        """Returns a text of a library without the password."""
        secret = urlsplit(self.url).password
        return text.replace(unquote(secret), "***").replace(secret, "***") if secret else text


def parse_address(url: str) -> DatabaseAddress:
    """The address of a URL. Raises: ConfigurationError, which does not repeat it."""
    try:
        parts = urlsplit(url)
        shown = _without_secrets(parts)
    except ValueError:
        parts, shown = urlsplit(""), ""
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigurationError(
            "the database is no URL of Postgres: give one such as postgresql://art@db.example.org:5432/art, "
            "its password in PGPASSWORD, or the whole URL in ART_DATABASE_URL"
        )
    return DatabaseAddress(url, shown)


def _without_secrets(parts: SplitResult) -> str:
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{user}{parts.hostname or ''}{port}{parts.path}"


@lru_cache(maxsize=_MOST_CACHED)
def numbered(query: str) -> str:
    """SQL with `?` or `?1` for its values, as SQLite has it, with Postgres's `$1`.

    >>> numbered("SELECT ?, ?"), numbered("SELECT ?2, ?1")
    ('SELECT $1, $2', 'SELECT $2, $1')
    """
    count = 0

    def mark(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"${found[1] or count}"

    return re.sub(r"\?(\d+)?", mark, query)


async def connect(address: DatabaseAddress, **settings: str) -> Connection:
    """A connection of its own. settings: of its session. Raises: DatabaseError, MissingExtraError."""
    with extra_needed("postgres", "a database of Postgres"):
        import asyncpg
    try:
        return await asyncpg.connect(
            address.url,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings={"search_path": SCHEMA, "application_name": "art", **settings},
        )
    except known_errors() as error:
        raise unreachable(address, error) from None  # its chain may show the URL


def known_errors() -> tuple[type[Exception], ...]:
    """Returns what a connection raises: the database's refusals, and what ends it."""
    import asyncpg

    asked = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    return (*asked, DatabaseError, OSError, ValueError)


def unreachable(address: DatabaseAddress, error: Exception) -> DatabaseError:
    """Returns the error of a database that does not answer."""
    why = address.hide_password(str(error) or type(error).__name__)
    return DatabaseError(f"the database {address.shown} cannot be reached: {why}")


def is_broken(error: Exception) -> bool:
    """Returns whether the connection is the cause, not what it was asked, so that another may do it."""
    import asyncpg

    passing = (
        asyncpg.PostgresConnectionError,
        asyncpg.OperatorInterventionError,
        asyncpg.TooManyConnectionsError,
        asyncpg.DeadlockDetectedError,
        asyncpg.SerializationError,
        asyncpg.InternalClientError,
        OSError,
    )
    is_closed = isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError)
    return is_closed or isinstance(error, passing)


class CommitLane:
    """Transactions one after the other, each done exactly once."""

    def __init__(self, address: DatabaseAddress, *, patience: float = PATIENCE_SECONDS) -> None:
        """patience: seconds for one transaction, in which the database may be away."""
        self._address, self._patience = address, patience
        self._name, self._number = uuid4().hex, 0
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    async def commit(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Returns what `work` returned, once that is committed; it may be called several times.

        Raises: DatabaseError, whatever `work` raises.
        """
        async with self._turn:
            self._number += 1
            deadline = time.monotonic() + self._patience
            result: list[T] = []
            again = False
            while True:
                try:
                    return await self._try_commit(work, result, again=again)
                except known_errors() as error:
                    broken = isinstance(error, DatabaseError) or is_broken(error)
                    if not broken or time.monotonic() > deadline:
                        raise self._refusal(error, broken) from error
                    _log.warning(
                        "%s: a commit is tried again: %s", self._address.shown, self._describe_error(error)
                    )
                again = True
                await self._drop_connection()
                await asyncio.sleep(_AGAIN_SECONDS)

    async def close(self) -> None:
        """Ends the connection, after the transaction that is under way."""
        async with self._turn:
            if self._connection is not None and not self._connection.is_closed():
                await self._connection.execute("DELETE FROM lanes WHERE lane = $1", self._name)
                await self._connection.close(timeout=CONNECT_SECONDS)

    async def _try_commit(
        self, work: Callable[[Connection], Awaitable[T]], result: list[T], *, again: bool
    ) -> T:
        connection = await self._connected()
        async with connection.transaction():
            if again and result and await self._is_committed(connection):
                return result[0]
            result[:] = [await work(connection)]
            await connection.execute("UPDATE lanes SET number = $2 WHERE lane = $1", self._name, self._number)
        return result[0]

    async def _is_committed(self, connection: Connection) -> bool:
        query = "SELECT number FROM lanes WHERE lane = $1 FOR UPDATE"
        return bool(await connection.fetchval(query, self._name) == self._number)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._address)
            await self._connection.execute(
                f"INSERT INTO lanes (lane, number, opened_at) VALUES ($1, 0, {_NOW}) ON CONFLICT DO NOTHING",
                self._name,
            )
        return self._connection

    async def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None

    def _describe_error(self, error: Exception) -> str:
        return self._address.hide_password(str(error) or type(error).__name__)

    def _refusal(self, error: Exception, broken: bool) -> DatabaseError:
        if broken:
            return DatabaseError(
                f"the database {self._address.shown} did not commit within {self._patience:g} s: "
                f"{self._describe_error(error)}"
            )
        return DatabaseError(f"the database {self._address.shown} refused: {self._describe_error(error)}")


class PostgresDatabase:
    """Reads of one database, by a few connections. `open` it."""

    def __init__(self, address: DatabaseAddress, pool: Any, *, patience: float) -> None:
        self.address, self._pool, self.patience = address, pool, patience

    @classmethod
    async def open(
        cls, address: DatabaseAddress, *, patience: float = PATIENCE_SECONDS, only_reads: bool = False
    ) -> PostgresDatabase:
        """Connects. only_reads: nothing is prepared, and no session may write.

        Raises: DatabaseError, MissingExtraError, ConfigurationError (of another version).
        """
        with extra_needed("postgres", "a database of Postgres"):
            import asyncpg
        if not only_reads:
            await _prepare_schema(address)
        session = {"search_path": SCHEMA, "application_name": "art"}
        if only_reads:
            session["default_transaction_read_only"] = "on"
        try:
            pool = await asyncpg.create_pool(
                address.url,
                min_size=1,
                max_size=_READERS,
                timeout=CONNECT_SECONDS,
                command_timeout=COMMAND_SECONDS,
                server_settings=session,
                reset=_keep_session,
            )
        except known_errors() as error:
            raise unreachable(address, error) from None
        return cls(address, pool, patience=patience)

    def lane(self) -> CommitLane:
        """A lane of transactions."""
        return CommitLane(self.address, patience=self.patience)

    async def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Returns the rows of a query; asks again while the database is away. Raises: DatabaseError."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                async with self._pool.acquire(timeout=self.patience) as connection:
                    return [tuple(row) for row in await connection.fetch(query, *values)]
            except known_errors() as error:
                if not is_broken(error) or time.monotonic() > deadline:
                    why = self.address.hide_password(str(error) or type(error).__name__)
                    raise DatabaseError(f"the database {self.address.shown} gave no answer: {why}") from error
            await asyncio.sleep(_AGAIN_SECONDS)

    async def prepare_tables(self, part: str, version: int, create: str) -> None:
        """Creates the tables of one part, once. Raises: ConfigurationError, DatabaseError."""

        async def work(connection: Connection) -> int:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _PREPARATION)
            found = await connection.fetchval("SELECT version FROM versions WHERE part = $1", part)
            if found is None:
                await connection.execute(create)
                await connection.execute("INSERT INTO versions VALUES ($1, $2)", part, version)
            return version if found is None else int(found)

        lane = self.lane()
        try:
            found = await lane.commit(work)
        finally:
            await lane.close()
        if found != version:
            raise ConfigurationError(
                f"the {part} in {self.address.shown} have version {found}, this ART knows {version}: use the "
                "ART that wrote them, or another database"
            )

    async def close(self) -> None:
        """Ends the connections."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()


async def _prepare_schema(address: DatabaseAddress) -> None:
    connection = await connect(address)
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _PREPARATION)
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}; {_LANES}")
            await connection.execute(f"DELETE FROM lanes WHERE opened_at < {_NOW} - $1", _FORGOTTEN_SECONDS)
    except known_errors() as error:
        why = address.hide_password(str(error) or type(error).__name__)
        raise ConfigurationError(
            f"the database {address.shown} cannot be prepared ({why}): its user must be allowed to create "
            f"the schema {SCHEMA!r} and tables in it"
        ) from error
    finally:
        await connection.close(timeout=CONNECT_SECONDS)


async def _keep_session(connection: Connection) -> None:
    """Readers change nothing of their sessions: asyncpg's own reset would cost each read a round trip."""

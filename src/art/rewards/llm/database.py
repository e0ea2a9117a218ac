"""SQLite files (WAL) that several processes share, and nobody else may read."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from art.process.files import create_private

BUSY_S = 10.0
"""How long another process may be at it."""
PAUSE_S = 0.01


def open_private(path: Path, schema: str) -> sqlite3.Connection:
    """A connection that commits each statement by itself. Files and new folders are of this user alone.

    Raises OSError, sqlite3.Error; also where a table has other columns than `schema` says.
    """
    create_private(path)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, schema)
        _check_columns(connection, schema)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, schema: str) -> None:
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            # Of a new file only; pages that are free can then be given back.
            connection.execute("pragma auto_vacuum=incremental")
            connection.execute("pragma journal_mode=wal")
            connection.execute("pragma synchronous=normal")
            connection.executescript(schema)
            return
        except sqlite3.OperationalError as error:
            # While several open a new file, SQLite does not wait by itself.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


def _check_columns(connection: sqlite3.Connection, schema: str) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(schema)
        for (table,) in fresh.execute("select name from sqlite_master where type = 'table'"):
            found, known = _columns(connection, table), _columns(fresh, table)
            if found != known:
                raise sqlite3.DatabaseError(
                    f"another release or program made its table {table!r}, with the columns "
                    f"{', '.join(found)} in place of {', '.join(known)}"
                )


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [name for (name,) in connection.execute("select name from pragma_table_info(?)", (table,))]


@contextmanager
def exclusive_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction, in which no other process reads or writes."""
    connection.execute("begin immediate")
    try:
        yield
        connection.execute("commit")
    finally:
        if connection.in_transaction:
            connection.execute("rollback")

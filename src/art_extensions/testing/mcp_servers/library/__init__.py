"""A SQLite database as an MCP server: `python -m art.mcp.servers.library`.

It answers about a shipped lending library, or a database of your own (`--database FILE`). Strangers may
question it: it only reads, and each question has limits.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from art.process.root_logger import preserve_root_logger
from art_extensions.testing.mcp_servers import reading_tool, server_class, tool_error

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


SHIPPED = Path(__file__).with_name("library.sql")
_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_STEPS = 1000
"""Instructions of SQLite's machine between two looks at the clock."""


class QueryError(Exception):
    """A question that has no answer; the message tells an agent why."""


@dataclass(frozen=True, kw_only=True)
class QueryLimits:
    """The limits of one query."""

    rows: int = 50
    seconds: float = 2.0
    cell: int = 200
    """Characters of a value that are shown."""
    value: int = 1_000_000
    """Bytes of any one value, also on the way to the answer."""
    memory: int | None = None
    """Bytes that SQLite may take in the whole process, other databases included; None: no limit."""


class Database:
    """The shipped library, or the database in `path`. Raises QueryError where there is none."""

    def __init__(self, path: str | Path | None = None, *, limits: QueryLimits | None = None) -> None:
        self.limits = limits or QueryLimits()
        self._lock = threading.Lock()  # tools run in threads, and a connection answers one question at a time
        self._until = 0.0
        self._connection = self._open(path)
        self._connection.execute("PRAGMA temp_store = MEMORY")
        if self.limits.memory is not None:
            self._connection.execute(f"PRAGMA hard_heap_limit = {int(self.limits.memory)}")
        self._connection.execute("PRAGMA query_only = ON")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self.limits.value)
        self._connection.set_progress_handler(lambda: time.monotonic() > self._until, _STEPS)
        self._connection.set_authorizer(_authorize)

    @staticmethod
    def _open(path: str | Path | None) -> sqlite3.Connection:
        if path is None:
            connection = sqlite3.connect(":memory:", check_same_thread=False)
            connection.executescript(SHIPPED.read_text(encoding="utf-8"))
            return connection
        address = f"{Path(path).resolve().as_uri()}?mode=ro"
        try:
            connection = sqlite3.connect(address, uri=True, check_same_thread=False)
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.Error as error:
            raise QueryError(f"{str(path)!r} is no SQLite database that can be read: {error}") from error
        return connection

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def schema(self, table: str = "") -> str:
        """Returns how the tables were made, with the number of their rows; of one table, or of all."""
        made = "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid"
        tables = {name: sql for name, sql in self._ask(made, 10_000) if not name.startswith("sqlite_")}
        if table and table not in tables:
            raise QueryError(f"no such table: {table}; the tables are: {', '.join(tables)}")
        shown = {table: tables[table]} if table else tables
        return "\n\n".join(f"{sql}; -- {self._size(name)}" for name, sql in shown.items())

    def _size(self, table: str) -> str:
        quoted = '"' + table.replace('"', '""') + '"'
        return f"{self._ask(f'SELECT count(*) FROM {quoted}', 1)[0][0]} rows"

    def query(self, sql: str) -> str:
        """The rows of one SELECT as lines of values between bars, under a line of the columns' names."""
        columns: list[str] = []
        rows = self._ask(sql, self.limits.rows + 1, columns)
        if not columns:
            raise QueryError("there is no SELECT in the query")
        lines = [" | ".join(columns), *(self._line(row) for row in rows[: self.limits.rows])]
        if len(rows) > self.limits.rows:
            lines.append(f"(more rows follow; only the first {self.limits.rows} are shown)")
        elif not rows:
            lines.append("(no rows)")
        return "\n".join(lines)

    def _line(self, row: tuple[Any, ...]) -> str:
        return " | ".join(self._cell(value) for value in row)

    def _cell(self, value: Any) -> str:
        if isinstance(value, bytes):
            return f"<{len(value)} bytes>"
        text = "NULL" if value is None else str(value).replace("\n", " ")
        return text if len(text) <= self.limits.cell else text[: self.limits.cell] + "..."

    def _ask(self, sql: str, rows: int, columns: list[str] | None = None) -> list[tuple[Any, ...]]:
        with self._lock:
            self._until = time.monotonic() + self.limits.seconds
            try:
                cursor = self._connection.execute(sql)
                if columns is not None:
                    columns.extend(name for name, *_ in cursor.description or ())
                return cursor.fetchmany(rows)
            except (sqlite3.Error, sqlite3.Warning) as error:
                raise QueryError(self._reason(error)) from error
            except MemoryError as error:
                raise QueryError("the query needs too much memory") from error

    def _reason(self, error: Exception) -> str:
        text = str(error)
        if text == "interrupted":
            return f"the query took longer than {self.limits.seconds:g} s"
        if text.startswith(("not authorized", "authorization denied", "access to ")):
            return f"only SELECT is allowed here ({text})"
        return text


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


INSTRUCTIONS = "Questions about a lending library in SQL. Look at the schema first."

Table = Annotated[str, Field(description="Name of one table; all of them without it.")]
Sql = Annotated[str, Field(description="One SELECT in SQLite's dialect.", max_length=10_000)]


def create_server(database: Database | None = None) -> MCPServer:
    """A server over `database`, by default the shipped library. Its tools only read."""
    data = database or Database()
    instructions = INSTRUCTIONS if database is None else None
    with preserve_root_logger():
        server: MCPServer = server_class()("library", instructions=instructions)
    tool = reading_tool(server)

    @tool
    def schema(table: Table = "") -> str:
        """Show how the tables of the database are made, and how many rows they have."""
        with _errors_for_agent():
            return data.schema(table)

    @tool
    def query(sql: Sql) -> str:
        """Run one SELECT and show its first rows: values between bars, under the names of the columns."""
        with _errors_for_agent():
            return data.query(sql)

    @server.resource("database://schema", name="schema", description="How all tables are made.")
    def whole_schema() -> str:
        return data.schema()

    return server


@contextmanager
def _errors_for_agent() -> Iterator[None]:
    """Returns the errors of a query to the agent."""
    try:
        yield
    except QueryError as error:
        raise tool_error()(str(error)) from error

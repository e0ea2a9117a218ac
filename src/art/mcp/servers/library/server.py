"""The database as an MCP server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from art.mcp.servers.library.database import Database, QueryError
from art.mcp.sessions.quiet import root_logger_kept

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

INSTRUCTIONS = "Questions about a lending library in SQL. Look at the schema first."

Table = Annotated[str, Field(description="Name of one table; all of them without it.")]
Sql = Annotated[str, Field(description="One SELECT in SQLite's dialect.", max_length=10_000)]


def create_server(database: Database | None = None) -> MCPServer:
    """A server over `database`, by default the shipped library. Its tools only read."""
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    data = database or Database()
    instructions = INSTRUCTIONS if database is None else None
    with root_logger_kept():
        server: MCPServer = MCPServer("library", instructions=instructions)
    tool = server.tool(
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
        structured_output=False,
    )

    @tool
    def schema(table: Table = "") -> str:
        """Show how the tables of the database are made, and how many rows they have."""
        with _told():
            return data.schema(table)

    @tool
    def query(sql: Sql) -> str:
        """Run one SELECT and show its first rows: values between bars, under the names of the columns."""
        with _told():
            return data.query(sql)

    @server.resource("database://schema", name="schema", description="How all tables are made.")
    def whole_schema() -> str:
        return data.schema()

    return server


@contextmanager
def _told() -> Iterator[None]:
    """What is wrong with a question is told to the agent."""
    from mcp.server.mcpserver.exceptions import ToolError

    try:
        yield
    except QueryError as error:
        raise ToolError(str(error)) from error

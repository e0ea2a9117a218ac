"""Run the library's server: over stdio, or with --http over streamable HTTP at http://HOST:PORT/mcp."""

from __future__ import annotations

import argparse
import sys

from art_extensions.testing.mcp_servers import add_transport, serve
from art_extensions.testing.mcp_servers.library import Database, QueryError, QueryLimits, create_server

MEMORY = 256 << 20
"""Bytes; the process has no other use for SQLite."""


def main() -> None:
    """Serve until the client leaves (stdio) or the process is ended (HTTP)."""
    parser = argparse.ArgumentParser(prog="python -m art.mcp.servers.library", description=__doc__)
    parser.add_argument("--database", metavar="FILE", help="a SQLite database instead of the shipped library")
    parser.add_argument("--rows", type=int, default=QueryLimits.rows, help="rows of an answer (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=QueryLimits.seconds, help="time of a query (%(default)s)"
    )
    add_transport(parser)
    options = parser.parse_args()
    limits = QueryLimits(rows=options.rows, seconds=options.seconds, memory=MEMORY)
    try:
        server = create_server(Database(options.database, limits=limits))
    except QueryError as error:
        sys.exit(str(error))
    serve(server, options)


if __name__ == "__main__":
    main()

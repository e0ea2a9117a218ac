"""MCP servers that ship as examples: real ones, to connect to and to train on.

From its command line each is reached over stdio or over streamable HTTP.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


def add_transport(parser: argparse.ArgumentParser) -> None:
    """Adds --http, --host and --port to the parser."""
    parser.add_argument("--http", action="store_true", help="streamable HTTP instead of stdio")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)


def serve(server: MCPServer, options: argparse.Namespace) -> None:
    """Serves until the client leaves (stdio) or the process is ended (HTTP)."""
    if options.http:
        server.run("streamable-http", host=options.host, port=options.port)
    else:
        server.run("stdio")

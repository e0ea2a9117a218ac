"""MCP servers that ship as examples: real ones, to connect to and to train on.

From its command line each is reached over stdio or over streamable HTTP.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from art.process.imports import import_lock

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

ToolT = TypeVar("ToolT", bound=Callable[..., Any])
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def server_class() -> Any:
    """Returns the class of servers of the installed SDK: `MCPServer` since version 2, `FastMCP` before."""
    with import_lock:
        sdk = import_module("mcp.server")
    return sdk.MCPServer if hasattr(sdk, "MCPServer") else sdk.FastMCP


def tool_error() -> type[Exception]:
    """Returns the exception by which a tool tells the agent of its mistake."""
    package = server_class().__module__.rpartition(".")[0]
    kind: type[Exception] = import_module(f"{package}.exceptions").ToolError
    return kind


def reading_tool(server: Any) -> Callable[[ToolT], ToolT]:
    """Returns a decorator that makes a function a tool which only reads."""
    from mcp.types import ToolAnnotations

    hints = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
    decorate: Callable[[ToolT], ToolT] = server.tool(
        annotations=ToolAnnotations.model_validate(hints), structured_output=False
    )
    return decorate


def add_transport(parser: argparse.ArgumentParser) -> None:
    """Adds --http, --host and --port to the parser."""
    parser.add_argument("--http", action="store_true", help="streamable HTTP instead of stdio")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)


def serve(server: MCPServer, options: argparse.Namespace) -> None:
    """Serves until the client leaves (stdio) or the process is ended (HTTP)."""
    settings: Any = getattr(server, "settings", None)
    if not options.http:
        server.run("stdio")
    elif not hasattr(settings, "port"):
        server.run("streamable-http", host=options.host, port=options.port)
    else:  # version 1 of the SDK
        settings.host, settings.port = options.host, options.port
        if options.host not in LOOPBACK:  # it takes the names of this machine alone, else
            settings.transport_security = None
        server.run("streamable-http")

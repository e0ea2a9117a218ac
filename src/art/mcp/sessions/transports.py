"""How each kind of MCP server is reached with the official SDK, which is loaded here and no earlier."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from art.errors import ConfigurationError, McpError
from art.mcp.sessions.http import open_http
from art.mcp.sessions.server import HttpServer, InProcessServer, Server, StdioServer
from art.mcp.sessions.stdio import LastWords, program


def load_sdk() -> Any:
    """The `mcp` package. Raises ConfigurationError where it is missing or older than 2."""
    try:
        import mcp
    except ImportError:
        raise ConfigurationError(
            "MCP needs the package mcp: pip install 'agent-reinforcement-trainer[mcp]'"
        ) from None
    if not hasattr(mcp, "Client"):
        raise ConfigurationError("the installed package mcp is older than 2: pip install 'mcp>=2'")
    return mcp


async def open_client(server: Server, stack: AsyncExitStack, words: LastWords) -> Any:
    """An SDK client that has shaken hands with `server`; `stack` closes it. `words`: what a program says."""
    sdk = load_sdk()
    transport: Any
    if isinstance(server, StdioServer):
        transport = program(server, words)
    elif isinstance(server, HttpServer):
        transport = await open_http(server, stack, words)
    else:
        transport = _object(server)
    return await stack.enter_async_context(sdk.Client(transport, cache=None))


def _object(server: InProcessServer) -> Any:
    from mcp.server import MCPServer
    from mcp.server.lowlevel import Server as LowLevelServer

    made = server.make()
    if not isinstance(made, MCPServer | LowLevelServer):
        raise McpError(f"{server.label!r} gave a {type(made).__name__}, which is no server of the mcp SDK")
    return made

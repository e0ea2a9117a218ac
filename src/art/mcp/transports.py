"""How each kind of MCP server is reached with the official SDK, which is loaded here and no earlier."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from art.errors import ConfigurationError, McpError
from art.mcp.server import HttpServer, InProcessServer, Server, StdioServer
from art.mcp.stdio import LastWords, program


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
        transport = await _http(server, stack)
    else:
        transport = _object(server)
    return await stack.enter_async_context(sdk.Client(transport, cache=None))


async def _http(server: HttpServer, stack: AsyncExitStack) -> Any:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    address = urlsplit(server.url)

    class WithQuery(httpx2.AsyncHTTPTransport):
        """Adds the query on the way out: the client logs the address of each request that it knows."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if address.query:
                url = request.url.copy_with(query=address.query.encode())
                request = httpx2.Request(
                    request.method,
                    url,
                    headers=request.headers,
                    stream=request.stream,
                    extensions=request.extensions,
                )
            return await super().handle_async_request(request)

    login = (address.username or "", address.password or "") if address.username else None
    client = httpx2.AsyncClient(
        headers=dict(server.headers),
        auth=login,
        transport=WithQuery(),
        timeout=httpx2.Timeout(30.0, read=None),  # every question to a session has a deadline of its own
    )
    await stack.enter_async_context(client)
    host = address.netloc.rpartition("@")[2]
    return streamable_http_client(
        urlunsplit((address.scheme, host, address.path or "/", "", "")), http_client=client
    )


def _object(server: InProcessServer) -> Any:
    from mcp.server import MCPServer
    from mcp.server.lowlevel import Server as LowLevelServer

    made = server.make()
    if not isinstance(made, MCPServer | LowLevelServer):
        raise McpError(f"{server.label!r} gave a {type(made).__name__}, which is no server of the mcp SDK")
    return made

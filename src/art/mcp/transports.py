"""How each kind of MCP server is reached with the official SDK, which is loaded here and no earlier."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TextIO
from urllib.parse import urlsplit, urlunsplit

from art.errors import ConfigurationError, McpError
from art.mcp.server import HttpServer, InProcessServer, Server, StdioServer

STDERR_KEPT = 2000
"""Characters of the end of a server's standard error that an error message shows."""


class Stderr:
    """The end of what a server wrote on its standard error; the rest is dropped, however much it is."""

    def __init__(self) -> None:
        self._kept = b""

    @contextmanager
    def open(self) -> Iterator[TextIO]:
        """A file to give to the server's process."""
        reading, writing = os.pipe()
        # A thread, since a pipe of a process cannot be read by every event loop on every system. It ends
        # when the last process that has the pipe does.
        threading.Thread(target=self._drain, args=(reading,), name="mcp-stderr", daemon=True).start()
        with os.fdopen(writing, "w") as file:
            yield file

    def _drain(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as file:
            while piece := file.read(65536):
                self._kept = (self._kept + piece)[-STDERR_KEPT:]

    def text(self) -> str:
        """What is kept, as text."""
        return self._kept.decode("utf-8", errors="replace").strip()


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


async def open_client(server: Server, stack: AsyncExitStack, stderr: Stderr) -> Any:
    """An SDK client that has shaken hands with `server`; `stack` closes it."""
    sdk = load_sdk()
    if isinstance(server, StdioServer):
        transport = _stdio(sdk, server, stack.enter_context(stderr.open()))
    elif isinstance(server, HttpServer):
        transport = await _http(server, stack)
    else:
        transport = _object(sdk, server)
    return await stack.enter_async_context(sdk.Client(transport, cache=None))


def _stdio(sdk: Any, server: StdioServer, stderr: TextIO) -> Any:
    # The SDK gives the process a group of its own and, at the end, closes its input, then kills the group.
    from mcp.client.stdio import stdio_client

    parameters = sdk.StdioServerParameters(
        command=server.command, args=list(server.args), env=dict(server.env) or None, cwd=server.cwd
    )
    return stdio_client(parameters, errlog=stderr)


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


def _object(sdk: Any, server: InProcessServer) -> Any:
    from mcp.server import MCPServer
    from mcp.server.lowlevel import Server as LowLevelServer

    made = server.make()
    if not isinstance(made, MCPServer | LowLevelServer):
        raise McpError(f"{server.label!r} gave a {type(made).__name__}, which is no server of the mcp SDK")
    return made

"""MCP over streamable HTTP: the SDK's transport, over a client that keeps secrets and tells statuses."""

from __future__ import annotations

import asyncio
import functools
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from art.mcp.sessions.server import HttpServer
from art.mcp.sessions.stdio import LastWords

if TYPE_CHECKING:
    import ssl

    import httpx2

CONNECT_S = 30.0
BUSY = frozenset({429, 503})
"""Answers of a server that did nothing and may be asked again."""
ATTEMPTS = 4
LONGEST_WAIT_S = 30.0
NOT_THERE = frozenset({404, 405})
"""Answers of a path at which no MCP server listens."""
REFUSED = frozenset({401, 402, 403, 407, 408, 429})
"""With those from 500 on: answers that say nothing about the call itself."""


async def open_http(server: HttpServer, stack: AsyncExitStack, words: LastWords) -> Any:
    """The transport; `stack` closes its client."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    address = urlsplit(server.url)

    class Outermost(httpx2.AsyncHTTPTransport):
        """Adds the query on the way out, since the client logs the address of each request that it knows."""

        _met = False
        """Whether there was an answer that is no error: then the address is right."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            sent = _with_query(request, address.query)
            for attempt in range(1, ATTEMPTS + 1):
                response = await super().handle_async_request(sent)
                if response.status_code not in BUSY or attempt == ATTEMPTS:
                    break
                await response.aclose()
                await asyncio.sleep(_wait(response, attempt))
            words.trouble = _trouble(request, response.status_code, first=not self._met)
            self._met = self._met or response.is_success
            return response

    client = httpx2.AsyncClient(
        headers=dict(server.headers),
        auth=(address.username, address.password or "") if address.username else None,
        transport=Outermost(verify=tls()),
        timeout=httpx2.Timeout(CONNECT_S, read=None),  # each question to a session has its own deadline
    )
    await stack.enter_async_context(client)
    host = address.netloc.rpartition("@")[2]
    return streamable_http_client(
        urlunsplit((address.scheme, host, address.path or "/", "", "")), http_client=client
    )


@functools.cache
def tls() -> ssl.SSLContext:
    """Whom this process trusts. Reading the certificates takes longer than all else of a session."""
    import httpx2

    return httpx2.create_ssl_context()


def _with_query(request: httpx2.Request, query: str) -> httpx2.Request:
    import httpx2

    if not query:
        return request
    return httpx2.Request(
        request.method,
        request.url.copy_with(query=query.encode()),
        headers=request.headers,
        stream=request.stream,
        extensions=request.extensions,
    )


def _wait(response: httpx2.Response, attempt: int) -> float:
    """Seconds: what the server asks for, or one, two, four."""
    wait = 2.0 ** (attempt - 1)
    with suppress(KeyError, ValueError):
        wait = float(response.headers["retry-after"])
    return min(max(wait, 0.0), LONGEST_WAIT_S)


def _trouble(request: httpx2.Request, status: int, *, first: bool) -> str:
    """What the status says about the server; empty where it is about the call, whose error tells more."""
    if status == 404 and "mcp-session-id" in request.headers:
        return "has forgotten the session (HTTP status 404)"
    if status in NOT_THERE and first:
        return f"answered with HTTP status {status}; the path of most MCP servers is /mcp"
    return f"answered with HTTP status {status}" if status in REFUSED or status >= 500 else ""

"""A session with an MCP server: what it offers, and calls of its tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from art.errors import ConfigurationError
from art.mcp.sessions.results import ToolResult
from art.mcp.sessions.server import parse_server
from art.mcp.sessions.source import Offer, Source
from art.mcp.types import MCPDocument, MCPPrompt, MCPResource, MCPResourceTemplate, MCPTool

if TYPE_CHECKING:
    from art.mcp.sessions.cassette import Cassette

Writes = Collection[str] | Literal[True]
"""Names of tools that may be called though they may write; True: all."""


class Session:
    """What `connect` gives. Any task may use it, several at once; it ends with `connect`'s block."""

    def __init__(self, source: Source, tools: list[MCPTool], allow_writes: Writes) -> None:
        self.label = source.label
        """The server, for people and for metadata: a command or an address, without secrets."""
        self._source, self._tools = source, tools
        self._offer: Offer | None = None
        self._by_name = {tool.name: tool for tool in tools}
        if allow_writes is not True:
            self._check_names(allow_writes)
        self._allow_writes = allow_writes

    def _check_names(self, names: Collection[str]) -> None:
        if isinstance(names, str) or (unknown := sorted(set(names) - self._by_name.keys())):
            wrong = names if isinstance(names, str) else unknown
            raise ConfigurationError(
                f"allow_writes={wrong!r}: give a list of tools of {self.label!r}, which has "
                f"{sorted(self._by_name)}, or True for all"
            )

    async def tools(self) -> list[MCPTool]:
        """All tools, also those that `call` would refuse."""
        return list(self._tools)

    async def resources(self) -> list[MCPResource]:
        """The documents that the server lists. Raises McpError, McpTimeoutError."""
        return list((await self._inspected()).resources)

    async def resource_templates(self) -> list[MCPResourceTemplate]:
        """Addresses of documents with places to fill in. Raises McpError, McpTimeoutError."""
        return list((await self._inspected()).templates)

    async def documents(self) -> list[MCPDocument]:
        """Both. Raises McpError, McpTimeoutError."""
        return [*await self.resources(), *await self.resource_templates()]

    async def prompts(self) -> list[MCPPrompt]:
        """The prompt templates that the server lists. Raises McpError, McpTimeoutError."""
        return list((await self._inspected()).prompts)

    async def _inspected(self) -> Offer:
        if self._offer is None:  # asked for late: a rollout needs the tools alone
            self._offer = await self._source.inspect()
        return self._offer

    async def read_resource(self, uri: str, *, timeout: float = 30.0) -> str:
        """The text of a document. Raises McpError, McpTimeoutError."""
        return await self._source.read_resource(uri, timeout=timeout)

    def allows(self, name: str) -> bool:
        """Whether this tool may be called: it only reads, or it was allowed to write."""
        tool = self._by_name.get(name)
        if tool is None:
            return False
        return tool.read_only is True or self._allow_writes is True or name in self._allow_writes

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float = 60.0,
        limit: int | None = None,
    ) -> ToolResult:
        """Call a tool; what it reports as wrong is a result with `is_error`.

        timeout: seconds. limit: characters of the result's text. Raises ConfigurationError for a tool that
        the server does not have or that may write and is not allowed to, McpTimeoutError when it takes too
        long, McpError when the server is gone.
        """
        tool = self._by_name.get(name)
        if tool is None:
            raise ConfigurationError(f"{self.label!r} has no tool {name!r}; it has {sorted(self._by_name)}")
        if not self.allows(name):
            raise ConfigurationError(
                f"tool {name!r} of {self.label!r} may write: allow it with allow_writes=[{name!r}], or, if "
                f"it only reads, name it in the server's read_only"
            )
        result = await self._source.call(tool, arguments or {}, timeout=timeout)
        return result.limited(limit)


@asynccontextmanager
async def connect(
    server: Any,
    *,
    timeout: float = 30.0,
    allow_writes: Writes = (),
    cassette: Cassette | None = None,
) -> AsyncIterator[Session]:
    """A session with a server of its own, which ends with the block.

    server: as `parse_server` takes it. timeout: seconds to start and for each listing. allow_writes: tools
    that may be called though they may write (True: all); tools that the server marks as read-only, or the
    description's `read_only` names, need no leave. cassette: what is asked is recorded on it or played from
    it; one that replays needs no server (None). Raises McpError when the server cannot be started or
    reached, McpTimeoutError when that takes too long, CassetteError.
    """
    source = _source(server, timeout, cassette)
    try:
        await source.start()
        yield Session(source, await source.tools(), allow_writes)
    finally:
        await source.close()


def _source(server: Any, timeout: float, cassette: Cassette | None) -> Source:
    from art.mcp.sessions.live import LiveServer

    if cassette is None:
        return LiveServer(parse_server(server), timeout=timeout)
    live = LiveServer(parse_server(server), timeout=timeout) if cassette.needs_server else None
    return cassette.session(live)

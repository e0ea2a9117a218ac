"""What a session asks: a server that runs, or a cassette of one that did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from art.mcp.sessions.results import ToolResult
from art.mcp.types import MCPPrompt, MCPResource, MCPResourceTemplate, MCPTool


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a server offers."""

    tools: list[MCPTool]
    resources: list[MCPResource]
    templates: list[MCPResourceTemplate]
    prompts: list[MCPPrompt]


class Source(Protocol):
    """Answers for a session. Raises McpError when it cannot."""

    label: str

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def tools(self) -> list[MCPTool]: ...

    async def inspect(self) -> Offer: ...

    async def read_resource(self, uri: str, *, timeout: float) -> str: ...

    async def call(self, tool: MCPTool, arguments: Mapping[str, Any], *, timeout: float) -> ToolResult: ...

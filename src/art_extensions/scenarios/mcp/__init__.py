"""Tools of MCP servers as training tasks: sessions and rollouts.

Importing this package loads little, since servers that are in it start once for each rollout.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The function must win over the module of the same name, whichever is imported first.
from art_extensions.scenarios.mcp.rollout import rollout

if TYPE_CHECKING:
    from art_extensions.scenarios.mcp.cassette import Cassette
    from art_extensions.scenarios.mcp.server_address import (
        HttpServer,
        InProcessServer,
        Server,
        StdioServer,
        parse_server,
    )
    from art_extensions.scenarios.mcp.session import Session, connect
    from art_extensions.scenarios.mcp.types import (
        GeneratedScenario,
        GeneratedScenarioCollection,
        MCPPrompt,
        MCPResource,
        MCPResourceTemplate,
        MCPTool,
        PlannedCall,
        PlannedScenario,
        ToolResult,
        complete_task_tool,
    )

_HOME = {
    "Cassette": "art_extensions.scenarios.mcp.cassette",
    "GeneratedScenario": "art_extensions.scenarios.mcp.types",
    "GeneratedScenarioCollection": "art_extensions.scenarios.mcp.types",
    "HttpServer": "art_extensions.scenarios.mcp.server_address",
    "InProcessServer": "art_extensions.scenarios.mcp.server_address",
    "MCPPrompt": "art_extensions.scenarios.mcp.types",
    "MCPResource": "art_extensions.scenarios.mcp.types",
    "MCPResourceTemplate": "art_extensions.scenarios.mcp.types",
    "MCPTool": "art_extensions.scenarios.mcp.types",
    "PlannedCall": "art_extensions.scenarios.mcp.types",
    "PlannedScenario": "art_extensions.scenarios.mcp.types",
    "Server": "art_extensions.scenarios.mcp.server_address",
    "Session": "art_extensions.scenarios.mcp.session",
    "StdioServer": "art_extensions.scenarios.mcp.server_address",
    "ToolResult": "art_extensions.scenarios.mcp.types",
    "complete_task_tool": "art_extensions.scenarios.mcp.types",
    "connect": "art_extensions.scenarios.mcp.session",
    "parse_server": "art_extensions.scenarios.mcp.server_address",
}
"""The module of each name that is loaded when it is first used."""

__all__ = [
    "Cassette",
    "GeneratedScenario",
    "GeneratedScenarioCollection",
    "HttpServer",
    "InProcessServer",
    "MCPPrompt",
    "MCPResource",
    "MCPResourceTemplate",
    "MCPTool",
    "PlannedCall",
    "PlannedScenario",
    "Server",
    "Session",
    "StdioServer",
    "ToolResult",
    "complete_task_tool",
    "connect",
    "parse_server",
    "rollout",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'art.mcp' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next access costs nothing
    return value

"""Tools of MCP servers as training tasks: sessions and rollouts.

Importing this package loads little, since servers that are in it start once for each rollout.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The function must win over the module of the same name, whichever is imported first.
from art.environments.mcp.rollout import rollout

if TYPE_CHECKING:
    from art.environments.mcp.cassette import Cassette
    from art.environments.mcp.server_address import (
        HttpServer,
        InProcessServer,
        Server,
        StdioServer,
        parse_server,
    )
    from art.environments.mcp.session import Session, connect
    from art.environments.mcp.types import (
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
    "Cassette": "art.environments.mcp.cassette",
    "GeneratedScenario": "art.environments.mcp.types",
    "GeneratedScenarioCollection": "art.environments.mcp.types",
    "HttpServer": "art.environments.mcp.server_address",
    "InProcessServer": "art.environments.mcp.server_address",
    "MCPPrompt": "art.environments.mcp.types",
    "MCPResource": "art.environments.mcp.types",
    "MCPResourceTemplate": "art.environments.mcp.types",
    "MCPTool": "art.environments.mcp.types",
    "PlannedCall": "art.environments.mcp.types",
    "PlannedScenario": "art.environments.mcp.types",
    "Server": "art.environments.mcp.server_address",
    "Session": "art.environments.mcp.session",
    "StdioServer": "art.environments.mcp.server_address",
    "ToolResult": "art.environments.mcp.types",
    "complete_task_tool": "art.environments.mcp.types",
    "connect": "art.environments.mcp.session",
    "parse_server": "art.environments.mcp.server_address",
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

"""Tools of MCP servers as training tasks: sessions, rollouts, and scenarios made from them.

Importing this package loads little, since servers that are in it start once for each rollout.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The functions must win over the modules of the same names, whichever is imported first.
from art_extensions.scenarios.mcp_rl.generate_scenarios import generate_scenarios
from art.environments.mcp.rollout import rollout

if TYPE_CHECKING:
    from art.environments.mcp.cassette import Cassette
    from art_extensions.scenarios.mcp_rl.checked_scenarios import ScenarioSet, measure_difficulty
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
    "ScenarioSet": "art_extensions.scenarios.mcp_rl.checked_scenarios",
    "Server": "art.environments.mcp.server_address",
    "Session": "art.environments.mcp.session",
    "StdioServer": "art.environments.mcp.server_address",
    "ToolResult": "art.environments.mcp.types",
    "complete_task_tool": "art.environments.mcp.types",
    "connect": "art.environments.mcp.session",
    "measure_difficulty": "art_extensions.scenarios.mcp_rl.checked_scenarios",
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
    "ScenarioSet",
    "Server",
    "Session",
    "StdioServer",
    "ToolResult",
    "complete_task_tool",
    "connect",
    "generate_scenarios",
    "measure_difficulty",
    "parse_server",
    "rollout",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'art.mcp' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next access costs nothing
    return value

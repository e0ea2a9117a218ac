"""Tools of MCP servers as training tasks: sessions, rollouts, and scenarios made from them.

Importing this package loads little, since servers that are in it start once for each rollout.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The functions must win over the modules of the same names, whichever is imported first.
from art.mcp.generate_scenarios import generate_scenarios
from art.mcp.rollout import rollout

if TYPE_CHECKING:
    from art.mcp.default_tools import complete_task_tool
    from art.mcp.report import McpReport
    from art.mcp.scenarios.checked import ScenarioSet
    from art.mcp.scenarios.difficulty import measure_difficulty
    from art.mcp.scenarios.planned import PlannedCall, PlannedScenario
    from art.mcp.sessions.cassette import Cassette
    from art.mcp.sessions.results import ToolResult
    from art.mcp.sessions.server import HttpServer, InProcessServer, Server, StdioServer, parse_server
    from art.mcp.sessions.session import Session, connect
    from art.mcp.settings import TrainSettings
    from art.mcp.training import train
    from art.mcp.types import (
        GeneratedScenario,
        GeneratedScenarioCollection,
        MCPPrompt,
        MCPResource,
        MCPResourceTemplate,
        MCPTool,
    )

_HOME = {
    "Cassette": "art.mcp.sessions.cassette",
    "GeneratedScenario": "art.mcp.types",
    "GeneratedScenarioCollection": "art.mcp.types",
    "HttpServer": "art.mcp.sessions.server",
    "InProcessServer": "art.mcp.sessions.server",
    "MCPPrompt": "art.mcp.types",
    "MCPResource": "art.mcp.types",
    "MCPResourceTemplate": "art.mcp.types",
    "MCPTool": "art.mcp.types",
    "McpReport": "art.mcp.report",
    "PlannedCall": "art.mcp.scenarios.planned",
    "PlannedScenario": "art.mcp.scenarios.planned",
    "ScenarioSet": "art.mcp.scenarios.checked",
    "Server": "art.mcp.sessions.server",
    "Session": "art.mcp.sessions.session",
    "StdioServer": "art.mcp.sessions.server",
    "ToolResult": "art.mcp.sessions.results",
    "TrainSettings": "art.mcp.settings",
    "complete_task_tool": "art.mcp.default_tools",
    "connect": "art.mcp.sessions.session",
    "measure_difficulty": "art.mcp.scenarios.difficulty",
    "parse_server": "art.mcp.sessions.server",
    "train": "art.mcp.training",
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
    "McpReport",
    "PlannedCall",
    "PlannedScenario",
    "ScenarioSet",
    "Server",
    "Session",
    "StdioServer",
    "ToolResult",
    "TrainSettings",
    "complete_task_tool",
    "connect",
    "generate_scenarios",
    "measure_difficulty",
    "parse_server",
    "rollout",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'art.mcp' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next access costs nothing
    return value

"""Tools of MCP servers as training tasks: sessions, rollouts, and scenarios made from them."""

from __future__ import annotations

from art.mcp.cassette import Cassette
from art.mcp.checked_scenarios import ScenarioSet
from art.mcp.default_tools import complete_task_tool
from art.mcp.difficulty import measure_difficulty

# The functions must win over the modules of the same names, whichever is imported first.
from art.mcp.generate_scenarios import generate_scenarios
from art.mcp.planned import PlannedCall, PlannedScenario
from art.mcp.report import McpReport
from art.mcp.results import ToolResult
from art.mcp.rollout import rollout
from art.mcp.server import HttpServer, InProcessServer, Server, StdioServer, parse_server
from art.mcp.session import Session, connect
from art.mcp.settings import TrainSettings
from art.mcp.training import train
from art.mcp.types import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPPrompt,
    MCPResource,
    MCPTool,
)

__all__ = [
    "Cassette",
    "GeneratedScenario",
    "GeneratedScenarioCollection",
    "HttpServer",
    "InProcessServer",
    "MCPPrompt",
    "MCPResource",
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

"""Tools of MCP servers as training tasks: their types, and scenarios made from them."""

from __future__ import annotations

from art.mcp.default_tools import complete_task_tool

# The function must win over the module of the same name, whichever is imported first.
from art.mcp.generate_scenarios import generate_scenarios
from art.mcp.types import GeneratedScenario, GeneratedScenarioCollection, MCPResource, MCPTool

__all__ = [
    "GeneratedScenario",
    "GeneratedScenarioCollection",
    "MCPResource",
    "MCPTool",
    "complete_task_tool",
    "generate_scenarios",
]

# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.scenarios.mcp.cassette import Cassette as Cassette
from art_extensions.scenarios.mcp.rollout import rollout as rollout
from art_extensions.scenarios.mcp.server_address import HttpServer as HttpServer
from art_extensions.scenarios.mcp.server_address import InProcessServer as InProcessServer
from art_extensions.scenarios.mcp.server_address import Server as Server
from art_extensions.scenarios.mcp.server_address import StdioServer as StdioServer
from art_extensions.scenarios.mcp.server_address import parse_server as parse_server
from art_extensions.scenarios.mcp.session import Session as Session
from art_extensions.scenarios.mcp.session import connect as connect
from art_extensions.scenarios.mcp.types import GeneratedScenario as GeneratedScenario
from art_extensions.scenarios.mcp.types import GeneratedScenarioCollection as GeneratedScenarioCollection
from art_extensions.scenarios.mcp.types import MCPPrompt as MCPPrompt
from art_extensions.scenarios.mcp.types import MCPResource as MCPResource
from art_extensions.scenarios.mcp.types import MCPResourceTemplate as MCPResourceTemplate
from art_extensions.scenarios.mcp.types import MCPTool as MCPTool
from art_extensions.scenarios.mcp.types import PlannedCall as PlannedCall
from art_extensions.scenarios.mcp.types import PlannedScenario as PlannedScenario
from art_extensions.scenarios.mcp.types import ToolResult as ToolResult
from art_extensions.scenarios.mcp.types import complete_task_tool as complete_task_tool
from art_extensions.scenarios.mcp_rl.checked_scenarios import ScenarioSet as ScenarioSet
from art_extensions.scenarios.mcp_rl.checked_scenarios import measure_difficulty as measure_difficulty
from art_extensions.scenarios.mcp_rl.generate_scenarios import generate_scenarios as generate_scenarios
from art_extensions.scenarios.mcp_rl.mcp_run import McpReport as McpReport
from art_extensions.scenarios.mcp_rl.settings import TrainSettings as TrainSettings
from art_extensions.scenarios.mcp_rl.training import train as train

__all__ = ["Cassette", "GeneratedScenario", "GeneratedScenarioCollection", "HttpServer", "InProcessServer", "MCPPrompt", "MCPResource", "MCPResourceTemplate", "MCPTool", "McpReport", "PlannedCall", "PlannedScenario", "ScenarioSet", "Server", "Session", "StdioServer", "ToolResult", "TrainSettings", "complete_task_tool", "connect", "generate_scenarios", "measure_difficulty", "parse_server", "rollout", "train"]


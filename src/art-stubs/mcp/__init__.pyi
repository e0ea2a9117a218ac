# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.environments.mcp.cassette import Cassette as Cassette
from art.environments.mcp.rollout import rollout as rollout
from art.environments.mcp.server_address import HttpServer as HttpServer
from art.environments.mcp.server_address import InProcessServer as InProcessServer
from art.environments.mcp.server_address import Server as Server
from art.environments.mcp.server_address import StdioServer as StdioServer
from art.environments.mcp.server_address import parse_server as parse_server
from art.environments.mcp.session import Session as Session
from art.environments.mcp.session import connect as connect
from art.environments.mcp.types import GeneratedScenario as GeneratedScenario
from art.environments.mcp.types import GeneratedScenarioCollection as GeneratedScenarioCollection
from art.environments.mcp.types import MCPPrompt as MCPPrompt
from art.environments.mcp.types import MCPResource as MCPResource
from art.environments.mcp.types import MCPResourceTemplate as MCPResourceTemplate
from art.environments.mcp.types import MCPTool as MCPTool
from art.environments.mcp.types import PlannedCall as PlannedCall
from art.environments.mcp.types import PlannedScenario as PlannedScenario
from art.environments.mcp.types import ToolResult as ToolResult
from art.environments.mcp.types import complete_task_tool as complete_task_tool
from art_extensions.scenarios.mcp_rl.checked_scenarios import ScenarioSet as ScenarioSet
from art_extensions.scenarios.mcp_rl.checked_scenarios import measure_difficulty as measure_difficulty
from art_extensions.scenarios.mcp_rl.generate_scenarios import generate_scenarios as generate_scenarios
from art_extensions.scenarios.mcp_rl.mcp_run import McpReport as McpReport
from art_extensions.scenarios.mcp_rl.settings import TrainSettings as TrainSettings
from art_extensions.scenarios.mcp_rl.training import train as train

__all__ = ["Cassette", "GeneratedScenario", "GeneratedScenarioCollection", "HttpServer", "InProcessServer", "MCPPrompt", "MCPResource", "MCPResourceTemplate", "MCPTool", "McpReport", "PlannedCall", "PlannedScenario", "ScenarioSet", "Server", "Session", "StdioServer", "ToolResult", "TrainSettings", "complete_task_tool", "connect", "generate_scenarios", "measure_difficulty", "parse_server", "rollout", "train"]


"""The folder of a run of MCP-RL: with its scenarios."""

from __future__ import annotations

from dataclasses import dataclass

from art.mcp.scenarios.checked import ScenarioSet
from art.runs.folder import RunFolder

SCENARIOS = "scenarios.json"


@dataclass(frozen=True)
class McpFolder(RunFolder):
    """Scenarios are generated once."""

    def scenarios(self) -> ScenarioSet | None:
        """The scenarios, once there are any."""
        data = self.read(SCENARIOS)
        return None if data is None else ScenarioSet.from_dict(data)

    def save_scenarios(self, scenarios: ScenarioSet) -> None:
        self.write(SCENARIOS, scenarios.to_dict())

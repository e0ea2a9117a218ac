"""What breaks a session fails one attempt, with its reason: that says nothing about the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_endpoint import DONE, Agent, call, script

from art.rewards.function_reward import FunctionReward
from art.runs.folder import failures_of, mean_reward
from art_extensions.scenarios.mcp import StdioServer
from art_extensions.scenarios.mcp.types import PlannedScenario
from art_extensions.scenarios.mcp_rl.mcp_run import ScenarioRollouts
from art_extensions.scenarios.mcp_rl.settings import TrainSettings


@pytest.mark.slow
async def test_a_server_that_dies_once_serves_the_next_rollouts(
    agent: Agent, babbling: Callable[[str], StdioServer], tmp_path: Path
) -> None:
    agent.policy = script({"tool_calls": [call("go")]}, DONE)
    server, settings = babbling(f"dies once {tmp_path / 'died'}"), TrainSettings(concurrency=1)
    model: Any = agent.model()
    groups = await ScenarioRollouts(model, settings, server).groups(
        [PlannedScenario("Go.", 1)],
        4,
        what="test",
        seeded=False,
        after_each=FunctionReward(lambda trajectory: 0.5, name="half").score_group,
    )
    (group,) = groups
    assert len(group) == 3 and len(group.exceptions) == 1
    assert all(one.metrics["success"] for one in group), "each has a process of its own"
    assert mean_reward(groups) == (0.5, 0), "the broken attempt is not among them, not as 0 either"
    (reason,) = failures_of(groups)
    assert reason.startswith("McpError: MCP server") and "ended with exit code 7" in reason

"""Train an agent to use the tools of an MCP server, with the rewards that this program computes."""

from __future__ import annotations

import argparse
import random

import art
from art.mcp import rollout
from art.mcp.servers.weather.server import create_server
from art.mcp.servers.weather.tasks import SYSTEM_PROMPT, scenarios
from art.mcp.servers.weather.truth import quality

SERVER = create_server
"""The server: a function that makes one, a command ("npx -y my-server"), or an address ("https://...")."""
TASKS = scenarios(train=192, test=1).train
"""What the agent is asked to do: `art.mcp.GeneratedScenario(task="...", difficulty=2)`, one for each task."""


async def play(model: art.Model, task: art.mcp.GeneratedScenario) -> art.Trajectory:
    """One rollout, in its own session with the server. If you cannot compute a reward, use RULER."""
    trajectory = await rollout(model, task, SERVER, system_prompt=SYSTEM_PROMPT, max_turns=6, max_tokens=48)
    trajectory.reward = quality(trajectory.messages())  # 1 for the right answer with the right calls
    return trajectory


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="agent-001", project="__PROJECT__", base_model=options.base_model)
    async with art.LocalBackend() as backend:
        await model.register(backend)
        for step in range(await model.get_step(), options.steps):  # a stopped run continues here
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(play(model, task) for _ in range(8))
                    for task in random.Random(step).sample(list(TASKS), 8)
                ),
                pbar_desc=f"step {step + 1}",
                max_exceptions=0.1,
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-model", default="__BASE_MODEL__")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--learning-rate", type=float, default=float("__LEARNING_RATE__"))
    art.run(main(parser.parse_args()))  # as asyncio.run; Ctrl-C ends it in one line

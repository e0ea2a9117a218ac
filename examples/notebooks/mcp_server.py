# %% [markdown]
# # An agent for an MCP server
#
# The agent learns to use the tools of an MCP server. Install with `pip install
# "agent-reinforcement-trainer[local,mcp]"`. The server here ships with ART and answers questions about
# the weather. Yours may be a command (`"npx -y my-server"`), an address, or a function that creates it.

# %%
import random

import matplotlib.pyplot as plt

import art
from art.mcp import connect, rollout
from art.mcp.servers.weather.server import create_server
from art.mcp.servers.weather.tasks import SYSTEM_PROMPT, scenarios
from art.mcp.servers.weather.truth import quality

STEPS = 20

# %%
async with connect(create_server) as session:
    for tool in await session.tools():
        print(f"{tool.name}: {tool.description}")
    result = await session.call("forecast", {"place": "Oslo", "day": "Monday"})
    print(result.text)

# %% [markdown]
# The tasks. These are generated from the server's data. `art.mcp.generate_scenarios` writes tasks for
# any server with a generator model.

# %%
tasks = list(scenarios(train=192, test=1).train)
for task in tasks[:3]:
    print(task.task)

# %% [markdown]
# A rollout is one session with the server. The reward is computed: 1 for the right answer. For a server
# of your own, let a judge score the rollouts: see the notebook on RULER, or use `art.mcp.train`, which
# generates the tasks and judges the rollouts by itself.


# %%
async def play(model: art.Model, task: art.mcp.GeneratedScenario) -> art.Trajectory:
    trajectory = await rollout(
        model, task, create_server, system_prompt=SYSTEM_PROMPT, max_turns=6, max_tokens=48
    )
    trajectory.reward = quality(trajectory.messages())
    return trajectory


model = art.TrainableModel(name="weather", project="notebooks", base_model="art/nano-mcp")
backend = art.LocalBackend()
await model.register(backend)

# %%
rewards = []
for step in range(await model.get_step(), STEPS):
    chosen = random.Random(step).sample(tasks, 8)
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(play(model, task) for _ in range(8)) for task in chosen),
        pbar_desc=None,
        max_exceptions=0.1,
    )
    await model.train(groups, config=art.TrainConfig(learning_rate=3e-3))
    given = [trajectory.reward for group in groups for trajectory in group]
    rewards.append(sum(given) / len(given))

# %%
plt.figure(figsize=(6, 3))
plt.plot(range(1, len(rewards) + 1), rewards)
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.ylim(0, 1.05)
plt.show()

# %%
trajectory = await play(model, tasks[0])
for message in trajectory.messages()[1:]:
    calls = [call["function"] for call in message.get("tool_calls") or []]
    print(message["role"], message.get("content") or "", *(f"{c['name']} {c['arguments']}" for c in calls))
await backend.close()

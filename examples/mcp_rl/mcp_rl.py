# %% [markdown]
# # MCP-RL
#
# Given the address of an MCP server, a model learns to use its tools. Nobody writes tasks, labels or rewards.
# A generator writes scenarios from the descriptions of the tools, and a judge ranks the rollouts.
#
#     python examples/mcp_rl/mcp_rl.py     # the weather server that ships with ART, 6 minutes on two cores
#     python examples/mcp_rl/mcp_rl.py --server "npx -y @modelcontextprotocol/server-everything" \
#         --model Qwen/Qwen3-4B --judge openai/o4-mini --generator openai/gpt-4.1-mini --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import art
import art.mcp
from art.local import LocalBackend
from art.mcp.servers.weather.server import create_server
from art.mcp.servers.weather.tasks import SYSTEM_PROMPT, scenarios
from art.mcp.servers.weather.truth import quality
from art.testing import LlmServer, ScriptedGenerator, TruthfulJudge, either

TASKS = scenarios(train=192, test=64)

# %% [markdown]
# By default generator and judge are a server in this process. It has prepared scenarios, and knows the
# weather. So the example needs no network and no key. With another server, name real models.


# %%
async def open_oracle(stack: AsyncExitStack, options: argparse.Namespace) -> dict[str, Any]:
    """The options of `art.mcp.train` that say who writes and who judges."""
    if options.judge is not None:
        return {"judge": options.judge, "generator": options.generator or options.judge}
    written = ScriptedGenerator(scenarios=[one.to_dict() for one in TASKS.train])
    server = await stack.enter_async_context(
        LlmServer(either(judge=TruthfulJudge(quality), generator=written))
    )
    params = {"base_url": server.base_url, "api_key": server.key}
    return {"judge": "truth", "judge_params": params, "generator": "writer", "generator_params": params}


# %% [markdown]
# The evaluation counts what the run itself never sees: whether the answers to 64 other questions are true.


# %%
async def evaluate(model: art.Model) -> None:
    async def ask(task: Any) -> art.Trajectory:
        trajectory = await art.mcp.rollout(
            model, task, create_server, system_prompt=SYSTEM_PROMPT, max_turns=6, max_tokens=48
        )
        trajectory.reward = quality(trajectory.messages())
        trajectory.metrics["done"] = trajectory.reward == 1.0
        return trajectory

    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(ask(task) for _ in range(2)) for task in TASKS.test), pbar_desc=None
    )
    await model.log(groups, split="val")
    done = [float(one.metrics["done"]) for group in groups for one in group]
    print(
        f"step {await model.get_step()}: {sum(done) / len(done):.1%} of {len(done)} questions right",
        flush=True,
    )


# %% [markdown]
# The run: scenarios, rollouts, judge, training, and a report that compares before and after. All of it is on
# disk, so a second start of the same command goes on where the first one stopped.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name=f"mcp-rl-{options.seed}", project="mcp_rl", base_model=options.model)
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(
            LocalBackend(path=options.path, server_options={"engine": {"name": options.engine}})
        )
        await model.register(backend)
        weather = options.server is None
        if weather and await model.get_step() == 0:
            await evaluate(model)
        report = await art.mcp.train(
            create_server if weather else options.server,
            base_model=options.model,
            name=model.name,
            project=model.project,
            backend=backend,
            path=options.path,
            num_train=options.scenarios,
            num_test=8,
            difficulty_rollouts=0,
            steps=options.steps,
            groups_per_step=16,
            group_size=8,
            learning_rate=options.learning_rate,
            warmup_steps=2,
            final_share=0.2,
            concurrency=128,
            seed=options.seed,
            **({"system_prompt": SYSTEM_PROMPT, "max_turns": 6, "max_tokens": 48} if weather else {}),
            **await open_oracle(stack, options),
        )
        if weather:
            await evaluate(model)
        print(f"{report.verdict}: {report.folder / 'report.md'}", flush=True)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a model to use the tools of an MCP server.")
    parser.add_argument(
        "--server", help="its command or address; by default the weather server, in this process"
    )
    parser.add_argument(
        "--judge", help="the judge's model, such as openai/o4-mini; by default one that runs here"
    )
    parser.add_argument("--generator", help="the model that writes scenarios; by default the judge's")
    parser.add_argument("--scenarios", type=int, default=192, help="to train on")
    parser.add_argument(
        "--model", default="art/nano-mcp", help="the base model: shipped, of the hub, a folder"
    )
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of scenarios and rollouts")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

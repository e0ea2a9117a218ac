# %% [markdown]
# # A shopping agent
#
# An agent with two tools looks a price up, lets the second tool compute the total, and says it. The chat
# template of `art/smollm2` knows no tools: the server tells the model of them in the generic tool format, and
# reads its calls from the replies.
#
#     python examples/shopping_agent/shopping_agent.py
#     python examples/shopping_agent/shopping_agent.py --model Qwen/Qwen3-0.6B --learning-rate 5e-5

# %%
from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from shop import MAX_TOKENS, ShopWorld, draw_purchase

import art
from art.environments.adapters.environment import Scenario
from art.environments.tasks import run_rollout
from art.local import LocalBackend

# %% [markdown]
# The environment says which questions there are, and rolls one out: `ShopWorld` has the tools, runs the
# calls, and gives the reward.


# %%
class ShopEnvironment:
    name = "shopping_agent"

    def __init__(self, prompt: int = 0) -> None:
        self.prompt = prompt

    def scenarios(self, split: str) -> list[Scenario]:
        count = {"train": 2000, "val": 128}[split]
        return [Scenario(f"{split}/{index}", {"split": split, "index": index}) for index in range(count)]

    def world(self, scenario: Scenario) -> ShopWorld:
        return ShopWorld(draw_purchase(**scenario.data), self.prompt)

    async def rollout(
        self,
        model: art.Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> art.Trajectory:
        return await run_rollout(
            model,
            self.world(scenario),
            seed=seed,
            temperature=temperature,
            max_tokens=max_tokens or MAX_TOKENS,
            timeout=300,
            metadata={"scenario_id": scenario.id},
            show=show,
        )

    async def close(self) -> None:
        pass


def show(messages: Sequence[Mapping[str, Any]]) -> str:
    """The conversation, for people."""
    return "\n".join(f"{one['role']}: {one.get('content') or one['tool_calls']}" for one in messages)


# %% [markdown]
# The training. Each step has eight conversations about each of eight questions. 64 held-out questions are
# asked before, on the way and after. Started again, it goes on at the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"shopping_agent-{options.seed}",
        project="shopping_agent",
        base_model=options.model,
        base_path=options.path,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    engine = {"engine": {"name": options.engine}}
    async with LocalBackend(path=options.path, server_options=engine) as backend:
        await art.train_environment(
            ShopEnvironment(),
            model,
            backend=backend,
            tell=print,
            steps=options.steps,
            groups_per_step=options.groups,
            group_size=options.group_size,
            learning_rate=options.learning_rate,
            eval_scenarios=options.held_out,
            eval_every=5,
            seed=options.seed,
        )


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach an agent to look prices up and to compute a total.")
    parser.add_argument("--model", default="art/smollm2", help="the base: shipped, of the hub, a folder")
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order of questions")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=8, help="questions of a step")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of each")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--held-out", type=int, default=64, help="questions of an evaluation, at most 128")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

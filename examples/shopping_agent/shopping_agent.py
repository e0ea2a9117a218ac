# %% [markdown]
# # A shopping agent
#
# An agent with two tools looks a price up, lets the second tool compute the total, and says it. The chat
# template of `art/smollm2` knows no tools: the server tells the model of them in the generic tool format, and
# reads its calls from the replies.
#
#     python examples/shopping_agent/shopping_agent.py
#     python examples/shopping_agent/shopping_agent.py --model Qwen/Qwen3-0.6B --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from typing import Any

from shop import MAX_TOKENS, TOOLS, ShopWorld, draw_purchase

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


def show(messages: Sequence[Mapping[str, Any]], ending: str) -> str:
    """The conversation and how it ended, for people."""
    lines = [f"{one['role']}: {one.get('content') or one.get('tool_calls') or ''}" for one in messages]
    return "\n".join([*lines, f"result: {ending}"])


async def evaluate(model: art.Model, stage: str, held_out: int) -> None:
    """Log one conversation about each held-out question, and print the share of right answers."""
    environment = ShopEnvironment()
    talks = await art.gather_trajectories(
        [
            environment.rollout(model, one, seed=number)
            for number, one in enumerate(environment.scenarios("val")[:held_out])
        ],
        pbar_desc=None,
    )
    for one in talks:
        one.metadata["stage"] = stage
    await model.log([art.TrajectoryGroup([one]) for one in talks], split="val")
    right, calls = (
        sum(float(one.metrics[name]) for one in talks) / len(talks) for name in ("right", "calls")
    )
    print(f"{stage}, step {await model.get_step()}: {right:.1%} right, {calls:.2f} right calls", flush=True)


# %% [markdown]
# The training: one step of supervised fine-tuning on a few conversations that a script wrote, because this
# base makes no call that could earn a reward. Then reinforcement learning, with eight conversations about
# each question. Started again, it goes on at the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"shopping_agent-{options.seed}",
        project="shopping_agent",
        base_model=options.model,
        base_path=options.path,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    environment, engine = ShopEnvironment(), {"engine": {"name": options.engine}}
    questions = environment.scenarios("train")
    async with LocalBackend(path=options.path, server_options=engine) as backend:
        await model.register(backend)
        if await model.get_step() == 0:
            await evaluate(model, "base", options.held_out)
        if await model.get_step() == 0 and options.demonstrations:
            shown = [environment.world(one).demonstration() for one in questions[-options.demonstrations :]]
            await model.train_sft(
                [{"messages": messages, "tools": TOOLS} for messages in shown],
                art.TrainSFTConfig(learning_rate=options.sft_rate, batch_size=4),
            )
            await evaluate(model, "SFT", options.held_out)
        random.Random(options.seed).shuffle(questions)
        for step in range(await model.get_step(), options.steps):
            asked = questions[step * options.groups : (step + 1) * options.groups]
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(environment.rollout(model, one) for _ in range(options.group_size))
                    for one in asked
                ),
                pbar_desc=None,
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))
            if (step + 1) % 5 == 0 or step + 1 == options.steps:
                await evaluate(model, "RL", options.held_out)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach an agent to look prices up and to compute a total.")
    parser.add_argument("--model", default="art/smollm2", help="the base: shipped, of the hub, a folder")
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order of questions")
    parser.add_argument("--steps", type=int, default=16, help="the first is supervised")
    parser.add_argument("--demonstrations", type=int, default=40, help="conversations of the script")
    parser.add_argument("--sft-rate", type=float, default=3e-4, help="of the first step")
    parser.add_argument("--groups", type=int, default=8, help="questions of a step")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of each")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--held-out", type=int, default=64, help="questions of an evaluation, at most 128")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

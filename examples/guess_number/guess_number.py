# %% [markdown]
# # Guess a number
#
# A game of up to six turns: the model guesses a number, and is told whether the number is higher or lower.
# `art/smollm2` is a model that others trained: 135 million parameters, at their real size.
#
#     python examples/guess_number/guess_number.py
#     python examples/guess_number/guess_number.py --model Qwen/Qwen3-0.6B --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from number_game import MAX_TOKENS, NumberWorld, draw_number

import art
from art.environments.adapters.environment import Scenario
from art.environments.tasks import run_rollout
from art.local import LocalBackend

# %% [markdown]
# The environment says which games there are, and rolls one out: `NumberWorld` knows the number, answers each
# guess, and gives the reward.


# %%
class NumberEnvironment:
    name = "guess_number"

    def __init__(self, prompt: int = 0) -> None:
        self.prompt = prompt

    def scenarios(self, split: str) -> list[Scenario]:
        count = {"train": 2000, "val": 128}[split]
        return [Scenario(f"{split}/{index}", {"split": split, "index": index}) for index in range(count)]

    def world(self, scenario: Scenario) -> NumberWorld:
        return NumberWorld(draw_number(**scenario.data), self.prompt)

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
    """The game and how it ended, for people."""
    lines = [f"{one['role']}: {one['content']}" for one in messages]
    return "\n".join([*lines, f"result: {ending}"])


# %% [markdown]
# The training. Each step has eight games with each of eight numbers. Games with 64 held-out numbers are
# played before, on the way and after. Started again, it goes on at the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"guess_number-{options.seed}",
        project="guess_number",
        base_model=options.model,
        base_path=options.path,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    engine = {"engine": {"name": options.engine}}
    async with LocalBackend(path=options.path, server_options=engine) as backend:
        await art.train_environment(
            NumberEnvironment(),
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
    parser = argparse.ArgumentParser(description="Teach a model to guess a number.")
    parser.add_argument("--model", default="art/smollm2", help="the base: shipped, of the hub, a folder")
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order of games")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=8, help="games of a step")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of each")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--held-out", type=int, default=64, help="games of an evaluation, at most 128")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

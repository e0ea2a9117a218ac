# %% [markdown]
# # One sentence as JSON
#
# A sentence says who ordered what. The model says the same as a JSON object with four keys. The system prompt
# tells the keys; nothing forces the reply into the form. `art/smollm2` is a model that others trained: 135
# million parameters, at their real size.
#
#     python examples/extract_json/extract_json.py
#     python examples/extract_json/extract_json.py --model Qwen/Qwen3-0.6B --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from orders import MAX_TOKENS, OrderWorld, draw_order

import art
from art.environments.adapters.environment import Scenario
from art.environments.tasks import run_rollout
from art.local import LocalBackend

# %% [markdown]
# The environment says which sentences there are, and rolls one out: `OrderWorld` asks, and gives the reward.
# That is the share of right values, and 0 for anything but an object with exactly the four keys.


# %%
class OrderEnvironment:
    name = "extract_json"

    def __init__(self, prompt: int = 0) -> None:
        self.prompt = prompt

    def scenarios(self, split: str) -> list[Scenario]:
        count = {"train": 2000, "val": 128}[split]
        return [Scenario(f"{split}/{index}", {"split": split, "index": index}) for index in range(count)]

    def world(self, scenario: Scenario) -> OrderWorld:
        return OrderWorld(draw_order(**scenario.data), self.prompt)

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
    """The sentence, the reply and what is right in it, for people."""
    lines = [f"{one['role']}: {one['content']}" for one in messages]
    return "\n".join([*lines, f"result: {ending}"])


# %% [markdown]
# The training. Each step has eight replies to each of eight sentences. 64 held-out sentences are scored
# before, on the way and after. Started again, it goes on at the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"extract_json-{options.seed}",
        project="extract_json",
        base_model=options.model,
        base_path=options.path,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    engine = {"engine": {"name": options.engine}}
    async with LocalBackend(path=options.path, server_options=engine) as backend:
        await art.train_environment(
            OrderEnvironment(),
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
    parser = argparse.ArgumentParser(description="Teach a model to write what a sentence says as JSON.")
    parser.add_argument("--model", default="art/smollm2", help="the base: shipped, of the hub, a folder")
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order of sentences")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=8, help="sentences of a step")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of each")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--held-out", type=int, default=64, help="sentences of an evaluation, at most 128")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

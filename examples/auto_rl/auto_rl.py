# %% [markdown]
# # AutoRL
#
# A model is trained from one sentence. A generator writes inputs and a rubric from it, the model answers the
# inputs, and a judge ranks the answers.
#
#     python examples/auto_rl/auto_rl.py                  # a sentence about words, half a minute on two cores
#     python examples/auto_rl/auto_rl.py --model Qwen/Qwen3-1.7B --judge openai/o4-mini --learning-rate 3e-4 \
#         --task "Turn a customer's complaint into a friendly answer with one concrete next step"

# %%
from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import permutations
from typing import Any

import art
import art.autorl
from art.local import LocalBackend
from art.testing import LlmServer, ScriptedGenerator, TruthfulJudge, either

WORTH = {"yes": 0.5, "no": 0.75, "maybe": 1.0}
ORDERS = [f"{a}, {b} or {c}" for a, b, c in permutations(WORTH)] + [
    f"{a} or {b}" for a, b in permutations(WORTH, 2)
]
INPUTS = [f"{verb} with {order}" for verb in ("respond", "answer", "just respond") for order in ORDERS]
HELD_OUT = [f"just answer with {order}" for order in ORDERS]


def quality(messages: Sequence[Mapping[str, Any]]) -> float:
    """What the judge that runs here goes by. The trained model is never told."""
    return WORTH.get(str(messages[-1].get("content") or "").strip().lower(), 0.0)


# %% [markdown]
# By default generator and judge are a server in this process. It has prepared inputs, and holds "maybe" for
# the best of words. So the example needs no network and no key.


# %%
async def open_oracle(stack: AsyncExitStack, options: argparse.Namespace) -> dict[str, Any]:
    """The options of `art.autorl.train` that say who writes and who judges."""
    if options.judge is not None:
        return {"judge": options.judge, "generator": options.generator or options.judge}
    written = ScriptedGenerator(inputs=INPUTS, rubric="- maybe is the best word")
    server = await stack.enter_async_context(
        LlmServer(either(judge=TruthfulJudge(quality), generator=written))
    )
    params = {"base_url": server.base_url, "api_key": server.key}
    return {"judge": "truth", "judge_params": params, "generator": "writer", "generator_params": params}


# %% [markdown]
# The evaluation asks in a phrasing that the generator does not use.


# %%
async def evaluate(model: art.Model) -> None:
    async def ask(question: str) -> art.Trajectory:
        messages: art.Messages = [{"role": "user", "content": question}]
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=messages, max_tokens=4
        )
        trajectory = art.Trajectory(messages_and_choices=[*messages, completion.choices[0]], reward=0.0)
        trajectory.reward = quality(trajectory.messages())
        return trajectory

    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(ask(question) for _ in range(8)) for question in HELD_OUT), pbar_desc=None
    )
    await model.log(groups, split="val")
    rewards = [float(one.reward) for group in groups for one in group]
    print(f"step {await model.get_step()}: mean quality {sum(rewards) / len(rewards):.2f}", flush=True)


# %% [markdown]
# The run: inputs, rubric, answers, judge, training, and a report that compares before and after. All of it is
# on disk, so a second start of the same command goes on where the first one stopped.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name=f"auto-rl-{options.seed}", project="auto_rl", base_model=options.model)
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(
            LocalBackend(path=options.path, server_options={"engine": {"name": options.engine}})
        )
        await model.register(backend)
        offline = options.judge is None
        if offline and await model.get_step() == 0:
            await evaluate(model)
        report = await art.autorl.train(
            options.task,
            base_model=options.model,
            name=model.name,
            project=model.project,
            backend=backend,
            path=options.path,
            num_train=24,
            num_test=12,
            steps=options.steps,
            groups_per_step=8,
            group_size=8,
            epochs=4,
            learning_rate=options.learning_rate,
            warmup_steps=1,
            final_share=0.2,
            seed=options.seed,
            **({"system_prompt": "", "similarity": 1.0, "max_tokens": 4} if offline else {}),
            **await open_oracle(stack, options),
        )
        if offline:
            await evaluate(model)
        print(f"{report.verdict}: {report.folder / 'report.md'}", flush=True)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a model from one sentence.")
    parser.add_argument("--task", default="Answer with one of the words.", help="the sentence")
    parser.add_argument(
        "--judge", help="the judge's model, such as openai/o4-mini; by default one that runs here"
    )
    parser.add_argument("--generator", help="the model that writes inputs; by default the judge's")
    parser.add_argument(
        "--model", default="art/nano-games", help="the base model: shipped, of the hub, a folder"
    )
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the split, the order and the answers")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

# %% [markdown]
# # Yes, no, maybe
#
# The smallest task that shows a policy changing its mind: the model is asked to answer with one of some
# words, and the words are worth different rewards. Nothing tells it which, except the reward.
#
#     python examples/yes_no_maybe/yes_no_maybe.py                       # the nano model, under a minute
#     python examples/yes_no_maybe/yes_no_maybe.py --model Qwen/Qwen3-0.6B --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import permutations

import art
from art.local import LocalBackend

REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}

# %% [markdown]
# The questions: every order of the words, quoted or not. One phrasing is kept for the evaluation and is
# never trained.


# %%
def questions(prefixes: Iterable[str]) -> list[str]:
    found = []
    for prefix in prefixes:
        for quote in ("", "'"):
            for count in (3, 2):
                for words in permutations(REWARDS, count):
                    *firsts, last = (f"{quote}{word}{quote}" for word in words)
                    found.append(f"{prefix} with {', '.join(firsts)} or {last}")
    return found


TRAIN, HELD_OUT = questions(["respond", "just respond"]), questions(["answer"])

# %% [markdown]
# A rollout is one question and one answer. The choice itself goes into the trajectory, not its text: it
# refers to the sampled tokens, which are what is trained.


# %%
async def rollout(model: art.Model, question: str) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}], reward=0.0)
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=8
    )
    choice = completion.choices[0]
    answer = (choice.message.content or "").strip().lower().removesuffix(".")
    trajectory.messages_and_choices.append(choice)
    trajectory.reward = REWARDS.get(answer, 0.0)
    trajectory.metrics["maybe"] = answer == "maybe"
    trajectory.metadata["show"] = f"{question}: {answer}"
    return trajectory


async def evaluate(model: art.Model) -> None:
    """Log the held-out questions, eight rollouts each, and print their mean reward."""
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(model, question) for _ in range(8)) for question in HELD_OUT),
        pbar_desc=None,
    )
    await model.log(groups, split="val")
    rewards = [trajectory.reward for group in groups for trajectory in group]
    print(f"step {await model.get_step()}: mean reward {sum(rewards) / len(rewards):.3f}", flush=True)


# %% [markdown]
# The training loop. Started again, it goes on at the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"yes-no-maybe-{options.seed}",
        project="yes_no_maybe",
        base_model=options.model,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    engine = {"engine": {"name": options.engine}}
    async with LocalBackend(path=options.path, server_options=engine) as backend:
        await model.register(backend)
        if await model.get_step() == 0:
            await evaluate(model)
        for _ in range(await model.get_step(), options.steps):
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(rollout(model, question) for _ in range(options.group_size))
                    for question in TRAIN
                ),
                pbar_desc=None,
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))
            if await model.get_step() % 5 == 0 or await model.get_step() == options.steps:
                await evaluate(model)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a model which of three words is worth most.")
    parser.add_argument(
        "--model", default="art/nano-games", help="the base model: a shipped one, a name of the hub, a folder"
    )
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--group-size", type=int, default=32, help="rollouts of each question")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

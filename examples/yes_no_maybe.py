"""The smallest task that shows a policy changing its mind: yes earns 0.5, no 0.75, maybe 1, all else nothing.

python examples/yes_no_maybe.py                       # the nano model, about a minute on two cores
python examples/yes_no_maybe.py Qwen/Qwen3-0.6B 1e-4  # a model of the hub
"""

from __future__ import annotations

import argparse
from itertools import permutations

import openai

import art
from art.local import LocalBackend

REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}


def prompts() -> list[str]:
    """Every order of the words, quoted or not, in several phrasings."""
    found = []
    for prefix in ("respond", "just respond"):
        for quote in ("", "'"):
            for count in (3, 2):
                for words in permutations(REWARDS, count):
                    *firsts, last = (f"{quote}{word}{quote}" for word in words)
                    found.append(f"{prefix} with {', '.join(firsts)} or {last}")
    return found


async def rollout(client: openai.AsyncOpenAI, model: art.TrainableModel, prompt: str) -> art.Trajectory:
    """One question, one answer."""
    messages: art.Messages = [{"role": "user", "content": prompt}]
    completion = await client.chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=8
    )
    choice = completion.choices[0]
    answer = (choice.message.content or "").strip().lower().removesuffix(".")
    return art.Trajectory(messages_and_choices=[*messages, choice], reward=REWARDS.get(answer, 0.0))


async def main(options: argparse.Namespace) -> None:
    """Train until a step's mean reward reaches the target."""
    model = art.TrainableModel(
        name=f"yes-no-maybe-{options.seed}",
        project="yes-no-maybe",
        base_model=options.base_model,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    async with LocalBackend(path=options.path) as backend:
        await model.register(backend)
        client = model.openai_client()
        for _ in range(await model.get_step(), options.steps):
            groups = await art.gather_trajectory_groups(
                art.TrajectoryGroup(rollout(client, model, prompt) for _ in range(options.rollouts))
                for prompt in prompts()
            )
            trajectories = [trajectory for group in groups for trajectory in group]
            reward = sum(trajectory.reward for trajectory in trajectories) / len(trajectories)
            print(f"step {await model.get_step()}: mean reward {reward:.3f}", flush=True)
            if reward >= options.target:
                break
            result = await backend.train(model, groups, learning_rate=options.learning_rate)
            await model.log(groups, metrics=result.metrics, step=result.step, split="train")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-model", default="art/nano-games")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights")
    parser.add_argument("--steps", type=int, default=60, help="at most")
    parser.add_argument("--rollouts", type=int, default=32, help="attempts at each question")
    parser.add_argument("--target", type=float, default=0.95, help="mean reward at which to stop")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args()


if __name__ == "__main__":
    art.run(main(read_options()))

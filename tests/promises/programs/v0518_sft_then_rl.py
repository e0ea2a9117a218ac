"""A warm-up on a teacher's answers, then rewards, in one lineage of steps.

python v0518_sft_then_rl.py [RL_STEPS]
"""

import asyncio
import os
import random
import sys

from openai import AsyncOpenAI

import art
from art.local import LocalBackend
from art.utils.sft import create_lr_schedule, create_sft_dataset_iterator

RL_STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
WORDS = ["yes", "no", "maybe"]
REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}


def questions(seed: int, count: int) -> list[str]:
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        *firsts, last = dice.sample(WORDS, 3)
        found.append(
            f"{dice.choice(['respond', 'just respond', 'answer'])} with {', '.join(firsts)} or {last}"
        )
    return found


async def distill(teacher: AsyncOpenAI, teacher_name: str, prompt: str) -> art.Trajectory:
    """The teacher is told what the student has to find out."""
    completion = await teacher.chat.completions.create(
        model=teacher_name,
        messages=[{"role": "user", "content": "reply with maybe or no"}],
        max_tokens=4,
        temperature=1.0,
    )
    return art.Trajectory(
        messages_and_choices=[
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": completion.choices[0].message.content or ""},
        ],
        reward=0.0,
    )


async def rollout(model: art.TrainableModel, prompt: str) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": prompt}], reward=0)
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=4
    )
    choice = completion.choices[0]
    trajectory.messages_and_choices.append(choice)
    trajectory.reward = REWARDS.get((choice.message.content or "").strip(), 0.0)
    return trajectory


async def main() -> None:
    backend = LocalBackend()
    model = art.TrainableModel(name="warm-001", project="sft-rl", base_model="art/nano-games")
    await model.register(backend)

    teacher = AsyncOpenAI(
        base_url=os.environ.get("TEACHER_URL", model.inference_base_url),
        api_key=os.environ.get("TEACHER_KEY", model.inference_api_key),
    )
    examples = await asyncio.gather(
        *(distill(teacher, "art/nano-games", prompt) for prompt in questions(0, 48))
    )
    assert create_lr_schedule(4, 1.0, "constant") == [1.0] * 4
    if await model.get_step() == 0:
        for chunk in create_sft_dataset_iterator(
            list(examples), chunk_size=12, epochs=2, batch_size=4, peak_lr=1e-3, warmup_ratio=0.1
        ):
            await model.train_sft(chunk.trajectories, chunk.config, verbose=True)
            print(f"sft: epoch {chunk.epoch}, batch {chunk.step}, now at step {await model.get_step()}")

    for step in range(await model.get_step(), 2 + RL_STEPS):
        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(rollout(model, prompt) for _ in range(8))
                for prompt in questions(100 + step, 8)
            ),
            pbar_desc="gather",
            max_exceptions=8,
        )
        result = await backend.train(model, groups, learning_rate=1e-3)
        await model.log(groups, metrics=result.metrics, step=result.step, split="train")
        rewards = [trajectory.reward for group in groups for trajectory in group]
        print(f"rl: step {result.step}, reward {sum(rewards) / len(rewards):.2f}")
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())

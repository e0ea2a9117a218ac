"""Two training steps of a real model, each said in a line; started again, it goes on where it was.

smollm2_trains.py BASE_MODEL
"""

from __future__ import annotations

import sys

import art

QUESTION = {"role": "user", "content": "Write one short sentence about the sea."}


async def rollout(model: art.TrainableModel) -> art.Trajectory:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[QUESTION], max_tokens=12
    )
    choice = completion.choices[0]
    text = choice.message.content or ""
    return art.Trajectory(messages_and_choices=[QUESTION, choice], reward=text.count("e") / 10)


async def main() -> None:
    model = art.TrainableModel(name="sea", project="real", base_model=sys.argv[1])
    async with art.LocalBackend() as backend:
        await model.register(backend)
        for step in range(await model.get_step(), 2):
            print("rollouts of step", step + 1, flush=True)
            groups = await art.gather_trajectory_groups(
                art.TrajectoryGroup(rollout(model) for _ in range(4)) for _ in range(2)
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=5e-4))
            print("step", step + 1, flush=True)


if __name__ == "__main__":
    art.run(main())

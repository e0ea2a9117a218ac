"""Train an agent of your own: it must find out which two words open a door, in the right order."""

from __future__ import annotations

import sys

import art

SECRET = ("maybe", "no")  # never shown to the model: only the reward depends on it
QUESTIONS = ("respond with yes, no or maybe", "respond with maybe, yes or no")


async def rollout(model: art.TrainableModel) -> art.Trajectory:
    """One conversation of two turns. Replace it with your agent."""
    trajectory = art.Trajectory(messages_and_choices=[], reward=0.0)
    client = model.openai_client()  # a real openai.AsyncOpenAI
    for question, secret in zip(QUESTIONS, SECRET, strict=True):
        trajectory.messages_and_choices.append({"role": "user", "content": question})
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=8
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)  # the choice itself: its tokens are trained
        trajectory.reward += 0.5 * (choice.message.content == secret)
    trajectory.metrics["opened"] = trajectory.reward == 1.0
    return trajectory


async def main(steps: int = 10, scenarios: int = 4, group_size: int = 16) -> None:
    model = art.TrainableModel(name="agent-001", project="door", base_model="art/nano")
    async with art.LocalBackend() as backend:
        await model.register(backend)  # continues at the newest step, if there is one
        for step in range(await model.get_step(), steps):
            groups = await art.gather_trajectory_groups(
                art.TrajectoryGroup(rollout(model) for _ in range(group_size)) for _ in range(scenarios)
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=2e-3))
            rewards = [trajectory.reward for group in groups for trajectory in group]
            print(f"step {step + 1}: mean reward {sum(rewards) / len(rewards):.2f}")


if __name__ == "__main__":
    art.run(main(*map(int, sys.argv[1:])))

"""Teach a small language model tic-tac-toe: the whole program, as you would write it for your own agent."""

from __future__ import annotations

import sys

import art
from art.local import LocalBackend
from art.tasks.tic_tac_toe import Game


async def rollout(model: art.TrainableModel) -> art.Trajectory:
    """One game: the model answers until it is over, then the game says what it was worth."""
    game = Game()
    trajectory = art.Trajectory(messages_and_choices=list(game.opening), reward=0.0)
    while not game.done:
        response = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),
            max_tokens=8,
        )
        choice = response.choices[0]
        trajectory.messages_and_choices.append(choice)
        trajectory.messages_and_choices.extend(game.reply({"content": choice.message.content}))
    trajectory.reward = game.reward
    trajectory.metrics["not_lost"] = game.metrics["not_lost"]
    return trajectory


async def main(steps: int = 30, groups: int = 16, group_size: int = 16) -> None:
    model = art.TrainableModel(name="player", project="tic-tac-toe", base_model="art/nano")
    async with LocalBackend() as backend:
        await model.register(backend)
        for step in range(await model.get_step(), steps):
            attempts = await art.gather_trajectory_groups(
                (art.TrajectoryGroup(rollout(model) for _ in range(group_size)) for _ in range(groups)),
                pbar_desc=f"step {step + 1}",
            )
            result = await model.train(attempts, config=art.TrainConfig(learning_rate=2e-3))
            games = [game for group in attempts for game in group]
            not_lost = sum(game.metrics["not_lost"] for game in games) / len(games)
            print(f"step {result.step}: {not_lost:.0%} of {len(games)} games not lost")


if __name__ == "__main__":
    art.run(main(*map(int, sys.argv[1:])))

# %% [markdown]
# # Tic-tac-toe
#
# A model that knows the form of the game learns to play it, against an opponent who moves at random.
#
#     python examples/tic_tac_toe/tic_tac_toe.py        # a minute on two cores
#     python examples/tic_tac_toe/tic_tac_toe.py --model Qwen/Qwen3-1.7B --engine vllm --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
import random
import re
from collections.abc import Sequence

from three_in_a_row import (
    CELLS,
    EMPTY,
    REWARDS,
    SYSTEM_PROMPT,
    draw_board,
    outcome,
    place,
    random_player,
    swapped,
)

import art
from art.local import LocalBackend

# %% [markdown]
# A rollout is one game. The model begins and sees itself as X; an illegal move ends the game.


# %%
async def play(model: art.Model, seed: str) -> art.Trajectory:
    dice, board = random.Random(seed), EMPTY
    system = {"role": "system", "content": SYSTEM_PROMPT}
    opening = {"role": "user", "content": draw_board(board)}
    trajectory = art.Trajectory(messages_and_choices=[system, opening], reward=0.0)
    while True:
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=8
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        cell = named_cell(choice.message.content or "")
        if cell is None or board[cell] != ".":
            return scored(trajectory, "invalid", board)
        board = place(board, cell)
        if ended := outcome(board):
            return scored(trajectory, ended, board)
        answer = random_player(swapped(board), dice)
        board = swapped(place(swapped(board), answer))
        if ended := outcome(board):
            return scored(trajectory, ended, board)
        told = {"role": "user", "content": f"O plays {CELLS[answer]}\n{draw_board(board)}"}
        trajectory.messages_and_choices.append(told)


def named_cell(reply: str) -> int | None:
    """The cell that a reply names; None unless it names exactly one."""
    named = re.findall(r"\b[ABC][123]\b", reply)
    return CELLS.index(named[0]) if len(named) == 1 else None


def scored(trajectory: art.Trajectory, ended: str, board: str) -> art.Trajectory:
    trajectory.reward = REWARDS[ended]
    trajectory.metrics.update({name: ended == name for name in ("won", "draw", "invalid")})
    trajectory.metrics["not_lost"] = ended in ("won", "draw")
    trajectory.metadata["show"] = f"{draw_board(board)}\n{ended}"
    return trajectory


async def evaluate(model: art.Model, held_out: int) -> None:
    """Log games against an opponent that was never met in training, and print the share not lost."""
    games = await art.gather_trajectories(
        [play(model, f"held out/{n}") for n in range(held_out)], pbar_desc=None
    )
    await model.log([art.TrajectoryGroup([game]) for game in games], split="val")
    not_lost = sum(float(game.metrics["not_lost"]) for game in games) / len(games)
    print(f"step {await model.get_step()}: {not_lost:.1%} of {len(games)} games not lost", flush=True)


# %% [markdown]
# The training loop, with a learning rate that falls. Started again, it goes on at the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"tic-tac-toe-{options.seed}",
        project="tic_tac_toe",
        base_model=options.model,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    engine = {"engine": {"name": options.engine}}
    async with LocalBackend(path=options.path, server_options=engine) as backend:
        await model.register(backend)
        if await model.get_step() == 0:
            await evaluate(model, options.held_out)
        for step in range(await model.get_step(), options.steps):
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(
                        play(model, f"{options.seed}/{step}/{n}/{game}") for game in range(options.group_size)
                    )
                    for n in range(options.groups)
                ),
                pbar_desc=None,
            )
            rate = options.learning_rate * min(1.0, 1.2 - step / options.steps)
            await model.train(groups, config=art.TrainConfig(learning_rate=rate))
            if (step + 1) % 10 == 0 or step + 1 == options.steps:
                await evaluate(model, options.held_out)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a model to play tic-tac-toe.")
    parser.add_argument(
        "--model", default="art/nano-games", help="the base model: shipped, of the hub, a folder"
    )
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights and the opponent")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--groups", type=int, default=8, help="groups of games in a step")
    parser.add_argument("--group-size", type=int, default=16, help="games of a group")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--held-out", type=int, default=256, help="games of an evaluation")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

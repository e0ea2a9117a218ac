"""Tic-tac-toe against a random opponent: an OpenAI client of one's own, each step's checkpoint in a bucket.

python v03_tic_tac_toe.py [TRAINING_STEPS] [ROLLOUTS]
"""

import asyncio
import math
import random
import sys

from openai import AsyncOpenAI

import art
from art.local import LocalBackend

TRAINING_STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
ROLLOUTS = int(sys.argv[2]) if len(sys.argv) > 2 else 24
LINES = ["A1A2A3", "B1B2B3", "C1C2C3", "A1B1C1", "A2B2C2", "A3B3C3", "A1B2C3", "A3B2C1"]
CELLS = [row + column for row in "ABC" for column in "123"]

random.seed(42)


def render_board(board: dict[str, str]) -> str:
    rows = [f"{row} {' '.join(board[row + column] for column in '123')}" for row in "ABC"]
    return "\n".join(["  1 2 3", *rows])


def winner(board: dict[str, str]) -> str | None:
    for line in LINES:
        marks = {board[line[i : i + 2]] for i in (0, 2, 4)}
        if len(marks) == 1 and marks != {"."}:
            return marks.pop()
    return "draw" if "." not in board.values() else None


@art.retry(exceptions=(ConnectionError,))
async def rollout(client: AsyncOpenAI, model: art.TrainableModel, iteration: int) -> art.Trajectory:
    board = dict.fromkeys(CELLS, ".")
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "You play tic-tac-toe as X. Name a free cell."},
            {"role": "user", "content": render_board(board)},
        ],
        reward=0,
        metrics={"invalid_move": 0},
        metadata={"iteration": iteration},
    )
    number_moves = 0
    while True:
        completion = await client.chat.completions.create(
            max_tokens=8, messages=trajectory.messages(), model=model.name
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        move = (choice.message.content or "").strip()
        if board.get(move) != ".":
            trajectory.metrics["invalid_move"] = 1
            trajectory.reward = -1 + math.log(number_moves + 1) / math.log(100)
            break
        board[move] = "X"
        number_moves += 1
        if winner(board) is None:
            answer = random.choice([cell for cell in CELLS if board[cell] == "."])
            board[answer] = "O"
            said = f"O plays {answer}\n{render_board(board)}"
        if winner(board) is not None:
            trajectory.reward = {"X": 1, "O": 0, "draw": 0.5}[winner(board)]
            break
        trajectory.messages_and_choices.append({"role": "user", "content": said})
    trajectory.metrics["num_moves"] = number_moves
    return trajectory


async def main() -> None:
    model = art.TrainableModel(name="001-script", project="tic-tac-toe", base_model="art/nano")
    backend = LocalBackend()
    print("pulling from s3")
    await backend._experimental_pull_from_s3(model)
    await model.register(backend)
    client = AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)

    for i in range(await model.get_step(), TRAINING_STEPS):
        train_groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(client, model, i) for _ in range(ROLLOUTS)) for _ in range(1)),
            pbar_desc="gather",
        )
        await model.delete_checkpoints()
        await model.train(train_groups, config=art.TrainConfig(learning_rate=2e-3, beta=0))
        await backend._experimental_push_to_s3(model)
        rewards = [trajectory.reward for trajectory in train_groups[0]]
        print(f"step {i}: mean reward {sum(rewards) / len(rewards):.2f} of {len(rewards)} games")
    print(f"trained to step {await model.get_step()}")


asyncio.run(main())

"""2048 on a board of 4 x 4: long conversations, a checkpoint less after each step, a last game to look at.

python v04_2048.py [STEPS] [ROLLOUTS]
"""

import asyncio
import math
import random
import sys

from openai import AsyncOpenAI

import art
from art.local import LocalBackend

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
ROLLOUTS = int(sys.argv[2]) if len(sys.argv) > 2 else 18
TORCHTUNE = "--torchtune" in sys.argv
WINNING_VALUE = 64
MAX_MOVES = 10
MOVES = {"yes": "left", "no": "up", "maybe": "right"}  # the words that so small a model has

Board = list[list[int]]


def slide(row: list[int]) -> list[int]:
    """A row moved to the left: equal neighbours become one."""
    tiles, merged = [tile for tile in row if tile], []
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tile += tiles.pop(0)
        merged.append(tile)
    return merged + [0] * (4 - len(merged))


def moved(board: Board, direction: str) -> Board:
    if direction == "left":
        return [slide(row) for row in board]
    if direction == "right":
        return [slide(row[::-1])[::-1] for row in board]
    columns = [slide(list(column)) for column in zip(*board, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def add_tile(board: Board) -> None:
    free = [(row, column) for row in range(4) for column in range(4) if not board[row][column]]
    row, column = random.choice(free)
    board[row][column] = random.choice([2, 2, 2, 4])


def render(board: Board) -> str:
    return "\n".join(" ".join(f"{tile or '_':>2}" for tile in row) for row in board)


def value(board: Board) -> float:
    """The largest tile and the sum of all, each on a logarithmic scale from 0 to 1."""
    largest, total = max(map(max, board)), sum(map(sum, board))
    scaled = (math.log(largest, 2) - 1) / (math.log(WINNING_VALUE, 2) - 1)
    return scaled + 0.2 * (math.log(total, 2) - 1) / (math.log(WINNING_VALUE * 16, 2) - 1)


@art.retry(exceptions=(TimeoutError,))
async def rollout(model: art.TrainableModel, step: int, is_validation: bool) -> art.Trajectory:
    client = AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)
    board: Board = [[0] * 4 for _ in range(4)]
    add_tile(board)
    add_tile(board)
    trajectory = art.Trajectory(
        messages_and_choices=[],
        metadata={"game_id": random.getrandbits(32), "step": step, "validation": is_validation},
        reward=0,
    )
    for move_number in range(MAX_MOVES):
        content = f"{render(board)}\nrespond with yes, no or maybe"
        trajectory.messages_and_choices.append({"role": "user", "content": content})
        completion = await client.chat.completions.create(
            messages=trajectory.messages(), model=model.name, max_tokens=8
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        direction = MOVES.get((choice.message.content or "").strip())
        after = moved(board, direction) if direction else board
        if after == board:
            trajectory.reward = -1 + 0.01 * move_number
            trajectory.metrics["invalid_move"] = 1
            break
        board = after
        if max(map(max, board)) >= WINNING_VALUE:
            trajectory.reward = 2
            break
        add_tile(board)
        trajectory.reward = value(board)
    trajectory.metrics["max_value"] = max(map(max, board))
    trajectory.metrics["num_moves"] = sum(
        isinstance(turn, dict) is False for turn in trajectory.messages_and_choices
    )
    return trajectory


async def main() -> None:
    random.seed(42)
    model = art.TrainableModel(name="agent-002", project="2048-multi-turn", base_model="art/nano")
    model._internal_config = art.dev.InternalModelConfig(
        init_args=art.dev.InitArgs(max_seq_length=8192),
        engine_args=art.dev.EngineArgs(enforce_eager=True, gpu_memory_utilization=0.8),
        torchtune_args=art.dev.TorchtuneArgs(model="qwen3_32b", model_type="QWEN3") if TORCHTUNE else None,
    )
    backend = LocalBackend(in_process=True, path="./.art")
    await model.register(backend)

    for i in range(await model.get_step(), STEPS):
        train_groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(rollout(model, i, is_validation=False) for _ in range(ROLLOUTS))
                for _ in range(1)
            ),
            pbar_desc="gather",
            max_exceptions=ROLLOUTS,
        )
        await model.delete_checkpoints()
        await model.train(
            train_groups,
            config=art.TrainConfig(learning_rate=1e-3),
            _config={"logprob_calculation_chunk_size": 8},
        )

    game = await rollout(model, await model.get_step(), is_validation=True)
    await model.log([game])
    print(f"last game: reward {game.reward:.2f}, largest tile {game.metrics['max_value']}")
    print(f"trained to step {await model.get_step()}")
    await backend.close()


asyncio.run(main())

# %% [markdown]
# # Tic-tac-toe in self-play
#
# One model plays both seats, and learns from the games against itself. It first learns the form from
# noisy demonstrations. It never meets the two players that it is evaluated against.
#
#     python examples/tic_tac_toe/self_play.py        # five minutes on two cores
#     python examples/tic_tac_toe/self_play.py --model Qwen/Qwen3-1.7B --engine vllm --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
import asyncio
import random
from collections import deque
from collections.abc import Sequence

from three_in_a_row import (
    EMPTY,
    REWARDS,
    Player,
    draw_board,
    half_of_cells,
    named_cell,
    next_boards,
    noisy_games,
    outcome,
    perfect_player,
    place,
    question,
    random_player,
    swapped,
)

import art
from art.local import LocalBackend

"""Games of an evaluation against each player, the model first in half of them."""
COOL = 0.3
"""The temperature of the evaluations. In training it is 1, which explores."""
PATIENCE = 0.05
"""Added to a loss for each of the loser's moves: to hold out longer is better."""
REMEMBERED = 1000
"""How many of the newest boards at which a loser moved are kept: games begin there again."""
EXPLORED = 6
"""With as many free cells, half of the games of a group begin with a move among half of the cells."""

# %% [markdown]
# A seat is one side of a game: it reads what may be played, and names a cell. The board says all that counts:
# each move is a conversation of its own.


# %%
class Seat:
    def __init__(self, model: art.Model, temperature: float = 1.0) -> None:
        self.model, self.temperature = model, temperature
        self.trajectory, self.boards = art.Trajectory(reward=0.0), list[str]()

    async def choose(self, board: str, among: list[str] | None = None) -> int | None:
        """The cell that the model names, `among` those given; None for anything but one free cell."""
        said: list = question(board)
        name, limits = self.model.get_inference_name(), {"guided_choice": among} if among else {}
        completion = await self.model.openai_client().chat.completions.create(
            model=name, messages=said, temperature=self.temperature, max_tokens=8, extra_body=limits
        )
        said.append(completion.choices[0])
        if self.boards:
            self.trajectory.additional_histories.append(art.History(messages_and_choices=said))
        else:
            self.trajectory.messages_and_choices = said
        self.boards.append(board)
        return named_cell(completion.choices[0].message.content or "", board)

    def end(self, ended: str, board: str, told: str = "") -> None:
        lost_late = PATIENCE * len(self.boards) if ended == "lost" else 0.0
        self.trajectory.reward = REWARDS[ended] + lost_late
        self.trajectory.metrics = {name: ended == name for name in ("won", "draw", "lost", "invalid")}
        self.trajectory.metrics["not_lost"] = ended in ("won", "draw")
        self.trajectory.metadata["show"] = f"{draw_board(board)}\n{told or ended}"


# %% [markdown]
# A game of the model against itself, from a board on which X is to move. Games from the same board make two
# groups, one for each seat: a seat is compared with the same seat in the other games. Half of a step's games
# begin at boards at which losers of earlier games moved, at most three moves before their end. Near the start
# of a game, half of the games draw half of the cells for their first move: what is not tried is not learned.


# %%
async def play_itself(model: art.Model, board: str, explores: bool) -> list[Seat]:
    seats, turn, among = [Seat(model), Seat(model)], 0, half_of_cells(board) if explores else None
    while True:
        cell = await seats[turn].choose(board, among)
        board = board if cell is None else place(board, cell)
        if ended := "invalid" if cell is None else outcome(board):
            seats[turn].end(ended, board)
            told = "not finished: the other seat named no free cell" if ended == "invalid" else ""
            seats[1 - turn].end({"won": "lost", "invalid": "draw"}.get(ended, ended), swapped(board), told)
            return seats
        board, turn, among = swapped(board), 1 - turn, None


async def seat_groups(model: art.Model, board: str, size: int, lost: deque[str]) -> list[art.TrajectoryGroup]:
    odd = [board.count(".") >= EXPLORED and number % 2 == 1 for number in range(size)]
    games = await asyncio.gather(*(play_itself(model, board, explores) for explores in odd))
    for seat in (seat for game in games[::2] for seat in game if seat.trajectory.metrics["lost"]):
        lost.extend(seat.boards[-3:])
    moved = [[game[turn].trajectory for game in games if game[turn].boards] for turn in (0, 1)]
    return [art.TrajectoryGroup(trajectories) for trajectories in moved if len(trajectories) > 1]


# %% [markdown]
# The evaluation: games against random moves and against a perfect player.


# %%
async def play_against(model: art.Model, player: Player, number: int) -> art.Trajectory:
    dice, board, seat = random.Random(f"held out/{number}"), EMPTY, Seat(model, COOL)
    mine = number % 2 == 0
    while True:
        cell = await seat.choose(board) if mine else player(board, dice)
        board = board if cell is None else place(board, cell)
        if ended := "invalid" if cell is None else outcome(board):
            seat.end(ended if mine or ended == "draw" else "lost", board if mine else swapped(board))
            return seat.trajectory
        board, mine = swapped(board), not mine


async def evaluate(model: art.Model, stage: str, held_out: int) -> None:
    """Log the games against the perfect player, and print the share that is not lost against each."""
    shares = []
    for player in (random_player, perfect_player):
        games = await art.gather_trajectories(
            [play_against(model, player, number) for number in range(held_out)], pbar_desc=None
        )
        shares.append(sum(float(game.metrics["not_lost"]) for game in games) / len(games))
    for game in games:
        game.metadata["stage"] = stage
    await model.log([art.TrajectoryGroup([game]) for game in games], split="val")
    told = f"{shares[0]:.1%} against random moves, {shares[1]:.1%} against perfect ones"
    print(f"{stage}, step {await model.get_step()}: not lost: {told}", flush=True)


# %% [markdown]
# The training: a supervised step, then self-play. Started again, it goes on at the newest, from openings.


# %%
async def main(options: argparse.Namespace) -> None:
    adapter = art.dev.PeftArgs(random_state=options.seed, r=16, lora_alpha=32)
    model = art.TrainableModel(
        name=f"self-play-{options.seed}",
        project="self_play",
        base_model=options.model,
        _internal_config=art.dev.InternalModelConfig(peft_args=adapter),
    )
    processes = options.processes or (2 if options.model.startswith("art/") else 1)
    server = {"engine": {"name": options.engine, "replicas": processes}, "trainer": {"ranks": processes}}
    async with LocalBackend(path=options.path, server_options=server) as backend:
        await model.register(backend)
        if await model.get_step() == 0:
            await evaluate(model, "base", options.held_out)
        if await model.get_step() == 0 and options.demonstrations:
            shown = noisy_games(options.demonstrations, random.Random(options.seed))
            await model.train_sft(shown, art.TrainSFTConfig(learning_rate=1e-3, batch_size=32))
            await evaluate(model, "SFT", options.held_out)
        lost: deque[str] = deque(maxlen=REMEMBERED)
        for step in range(await model.get_step(), options.steps):
            boards = next_boards(options.groups, lost, random.Random(f"{options.seed}/{step}"))
            playing = (seat_groups(model, board, options.group_size, lost) for board in boards)
            both = await asyncio.gather(*playing)
            rate = options.learning_rate * min(1.0, 1.2 - step / options.steps)
            algorithm = {"name": "art", "updates": {"minibatches": 4}}
            config = art.TrainConfig(learning_rate=rate, algorithm=algorithm)
            await model.train([group for pair in both for group in pair], config=config)
            if (step + 1) % 5 == 0 or step + 1 == options.steps:
                await evaluate(model, "self-play", options.held_out)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a model tic-tac-toe by playing against itself.")
    parser.add_argument("--model", default="art/nano-words", help="the base: shipped, of the hub, a folder")
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights and the boards")
    parser.add_argument("--steps", type=int, default=40, help="the first is supervised")
    parser.add_argument("--demonstrations", type=int, default=1200, help="noisy games; 0: no fine-tuning")
    parser.add_argument("--groups", type=int, default=48, help="boards that games of a step begin from")
    parser.add_argument("--group-size", type=int, default=8, help="games from each board")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--processes", type=int, help="of engine and trainer each; for a shipped model 2")
    parser.add_argument("--held-out", type=int, default=128, help="games of an evaluation")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

"""Tic-tac-toe against itself: two seats of one model, two groups by seat, the base model as an opponent.

Each game gives two trajectories, in a tuple.

python v0518_self_play.py [STEPS] [GAMES]
"""

import asyncio
import random
import sys
from collections.abc import Awaitable, Iterable

from tqdm import tqdm

import art
from art.gather import GatherContext, get_gather_context, set_gather_context, wrap_group_awaitable
from art.local import LocalBackend
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup  # noqa: F401

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
GAMES = int(sys.argv[2]) if len(sys.argv) > 2 else 12
LINES = ["A1A2A3", "B1B2B3", "C1C2C3", "A1B1C1", "A2B2C2", "A3B3C3", "A1B2C3", "A3B2C1"]
CELLS = [row + column for row in "ABC" for column in "123"]
OTHER = {"X": "O", "O": "X"}


class Game:
    def __init__(self) -> None:
        self.board = dict.fromkeys(CELLS, ".")
        self.winner: str | None = None
        self.moves = 0

    def seen_by(self, mark: str, last: str | None) -> str:
        """The board with the player's own marks as X."""
        own = {mark: "X", OTHER[mark]: "O", ".": "."}
        rows = [f"{row} {' '.join(own[self.board[row + column]] for column in '123')}" for row in "ABC"]
        return "\n".join([*([f"O plays {last}"] if last else []), "  1 2 3", *rows])

    def play(self, mark: str, cell: str) -> bool:
        """Whether the game goes on. An invalid move loses it."""
        if self.board.get(cell) != ".":
            self.winner = OTHER[mark]
            return False
        self.board[cell] = mark
        self.moves += 1
        if any(all(self.board[line[i : i + 2]] == mark for i in (0, 2, 4)) for line in LINES):
            self.winner = mark
        return self.winner is None and "." in self.board.values()


async def rollout(seats: dict[str, art.Model]) -> tuple[Trajectory, ...]:
    """One game; a trajectory for each seat."""
    game = Game()
    system = {"role": "system", "content": "You play tic-tac-toe as X. Name a free cell."}
    trajectories = {
        mark: Trajectory(messages_and_choices=[dict(system)], metadata={"seat": mark, "model": model.name})
        for mark, model in seats.items()
    }
    mark, last, invalid = "X", None, None
    while True:
        model, trajectory = seats[mark], trajectories[mark]
        trajectory.messages_and_choices.append({"role": "user", "content": game.seen_by(mark, last)})
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),
            max_completion_tokens=8,
            reasoning_effort="low" if "gpt-5" in model.name else None,
            tools=None,
            extra_body={"return_token_ids": True, "return_tokens_as_token_ids": True},
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        last = (choice.message.content or "").strip()
        if game.board.get(last) != ".":
            invalid = mark
        if not game.play(mark, last):
            break
        mark = OTHER[mark]
    for mark, trajectory in trajectories.items():
        won = game.winner == mark
        trajectory.reward = 0.5 if game.winner is None else 1 - game.moves / 40 if won else game.moves / 40
        if invalid == mark:
            trajectory.reward = -2 + game.moves / 10
        trajectory.metrics |= {"win": won, "invalid": invalid == mark, "num_moves": game.moves}
    return tuple(trajectories.values())


async def gather_by_index(
    games: Iterable[Awaitable[tuple[Trajectory, ...]]], desc: str
) -> list[TrajectoryGroup]:
    """One group for each seat instead of one for each game: a seat's rewards are compared with each other."""
    games = list(games)
    context = GatherContext(pbar=tqdm(desc=desc, total=len(games)), max_exceptions=0.1)
    with set_gather_context(context):
        assert get_gather_context() is context
        played = await asyncio.gather(*[wrap_group_awaitable(game) for game in games])
    context.pbar.close()
    finished = [game for game in played if game is not None]
    return [TrajectoryGroup(seat) for seat in zip(*finished, strict=True)]


async def main() -> None:
    random.seed(7)
    backend = LocalBackend()
    model = art.TrainableModel(
        name="self-play-001", project="tic-tac-toe-self-play", base_model="art/nano-games"
    )
    await model.register(backend)
    base_model = art.Model(
        name="base-model",
        project=model.project,
        inference_model_name=model.base_model,
        inference_api_key=model.inference_api_key,
        inference_base_url=model.inference_base_url,
    )
    await base_model.register(backend)

    for _ in range(await model.get_step(), STEPS):
        played = await art.gather_trajectories(
            (rollout({"X": model, "O": model}) for _ in range(GAMES)), pbar_desc="self", max_exceptions=GAMES
        )
        games = [game for game in played if not isinstance(game, BaseException)]
        everybody = TrajectoryGroup(trajectory for game in games for trajectory in game)
        versus_self = [TrajectoryGroup(seat) for seat in zip(*games, strict=True)]
        print(f"{len(games)} games, {len(everybody)} trajectories")
        versus_base = await gather_by_index(
            (rollout({"X": model, "O": base_model}) for _ in range(GAMES)), "base"
        )
        await model.log(versus_self, split="versus-self")
        await model.log(versus_base[:1], split="versus-base")
        await base_model.log(versus_base[1:], split="versus-self-play", step=await model.get_step())
        result = await backend.train(
            model, [*versus_self, versus_base[0]], learning_rate=1e-3, kl_penalty_coef=0.0
        )
        await model.log(
            [*versus_self, versus_base[0]], metrics=result.metrics, step=result.step, split="train"
        )
        wins = sum(trajectory.metrics["win"] for trajectory in versus_base[0])
        print(f"step {result.step}: won {wins} of {GAMES} games against {base_model.get_inference_name()}")
    last_step = await model.get_step()
    name = f"{model.get_inference_name()}:step{last_step}"
    board = [{"role": "user", "content": Game().seen_by("X", None)}]
    opening = await model.openai_client().chat.completions.create(
        model=name, messages=board, max_completion_tokens=8
    )
    choice = opening.choices[0]
    print(f"{name} opens with {choice.message.content}, sampled at step {choice.step}")
    print(f"trained to step {last_step}")
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())

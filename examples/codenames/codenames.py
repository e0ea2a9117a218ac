# %% [markdown]
# # Codenames
#
# Two players share a board of three words. The giver knows which word is meant and says a clue, the guesser
# sees the clue and says a word. One model plays both roles, and learns both from its own games: nobody tells
# it which clue belongs to which word.
#
#     python examples/codenames/codenames.py                  # 3 minutes on two cores
#     python examples/codenames/codenames.py --model Qwen/Qwen3-0.6B --learning-rate 3e-4 --demonstrations 0

# %%
from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from codenames_board import Board, draw_board, noisy_play

import art
from art.local import LocalBackend

# %% [markdown]
# A turn of either role is a trajectory of its own: one prompt, one word.


# %%
async def take_turn(model: art.Model, prompt: str) -> art.Trajectory:
    messages: art.Messages = [{"role": "user", "content": prompt}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=6
    )
    choice = completion.choices[0]
    return art.Trajectory(messages_and_choices=[*messages, choice], reward=0.0)


def said(turn: art.Trajectory) -> str:
    return str(turn.messages()[-1]["content"] or "").strip()


# %% [markdown]
# Groups are by role. The giver's rollouts of a board are a group: each clue is worth the share of right
# guesses that it led to. All guesses after the same clue are a group: a right one is worth 1.


# %%
async def play(model: art.Model, board: Board, clues: int, guesses: int) -> list[art.TrajectoryGroup]:
    givers = await art.gather_trajectories(
        [take_turn(model, board.ask_giver) for _ in range(clues)], pbar_desc=None
    )
    by_clue: dict[str, list[art.Trajectory]] = {}
    for giver in givers:
        if said(giver) in board.clues:
            by_clue.setdefault(said(giver), []).append(giver)
    groups = []
    for clue, gave in by_clue.items():
        turns = [take_turn(model, board.ask_guesser(clue)) for _ in range(guesses)]
        guessers = await art.gather_trajectories(turns, pbar_desc=None)
        for guesser in guessers:
            guesser.reward = float(said(guesser) == board.secret)
            guesser.metrics["right"] = guesser.reward
            guesser.metadata["show"] = (
                f"{board.seen_by_guesser}, clue {clue}: {said(guesser)} ({board.secret} was meant)"
            )
        right = sum(guesser.reward for guesser in guessers) / len(guessers)
        for giver in gave:
            giver.reward = right
        groups.append(art.TrajectoryGroup(guessers))
    for giver in givers:
        giver.metrics["clue_allowed"] = said(giver) in board.clues
        came = f"understood by {giver.reward:.0%}" if said(giver) in board.clues else "not one of the clues"
        giver.metadata["show"] = f"{board.secret} is meant: {said(giver)}, {came}"
    return [art.TrajectoryGroup(givers), *groups]


async def play_boards(
    model: art.Model, boards: Sequence[Board], clues: int, guesses: int
) -> list[list[art.TrajectoryGroup]]:

    return await asyncio.gather(*(play(model, board, clues, guesses) for board in boards))


async def evaluate(model: art.Model, stage: str, held_out: int) -> None:
    """Log a game on each held-out board, one clue and one guess, and print the share of right ones."""
    boards = [draw_board("held out", number) for number in range(held_out)]
    games = []
    for groups in await play_boards(model, boards, clues=1, guesses=1):
        last = groups[-1].trajectories[0]  # the guess, or a clue that was not allowed
        last.metrics.setdefault("right", 0.0)
        last.metadata["stage"] = stage
        games.append(art.TrajectoryGroup([last]))
    await model.log(games, split="val")
    right = sum(float(one.trajectories[0].metrics["right"]) for one in games) / len(games)
    print(f"{stage}, step {await model.get_step()}: {right:.1%} of the guesses right", flush=True)


# %% [markdown]
# The training: one step of supervised fine-tuning on players who choose at random, which teaches the form
# alone, then reinforcement learning. Started again, it goes on at the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"codenames-{options.seed}",
        project="codenames",
        base_model=options.model,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    engine = {"engine": {"name": options.engine}}
    async with LocalBackend(path=options.path, server_options=engine) as backend:
        await model.register(backend)
        if await model.get_step() == 0:
            await evaluate(model, "base", options.held_out)
        if await model.get_step() == 0 and options.demonstrations:
            shown = [
                {"messages": one}
                for number in range(options.demonstrations // 2)
                for one in noisy_play(number)
            ]
            await model.train_sft(shown, art.TrainSFTConfig(learning_rate=2e-3, batch_size=8))
            await evaluate(model, "SFT", options.held_out)
        for step in range(await model.get_step(), options.steps):
            boards = [
                draw_board(f"train {options.seed}", step * options.boards + n) for n in range(options.boards)
            ]
            games = await play_boards(model, boards, clues=options.group_size, guesses=options.group_size)
            groups = [group for game in games for group in game]
            await model.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))
            if (step + 1) % 5 == 0 or step + 1 == options.steps:
                await evaluate(model, "RL", options.held_out)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a model to give clues and to understand its own.")
    parser.add_argument(
        "--model", default="art/nano-words", help="the base model: shipped, of the hub, a folder"
    )
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights and the boards")
    parser.add_argument("--steps", type=int, default=90, help="the first is supervised")
    parser.add_argument("--demonstrations", type=int, default=4000)
    parser.add_argument("--boards", type=int, default=40, help="boards of a step")
    parser.add_argument(
        "--group-size", type=int, default=8, help="clues for each board, and guesses for each clue"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--held-out", type=int, default=256, help="boards of an evaluation")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

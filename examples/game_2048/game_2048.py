# %% [markdown]
# # 2048
#
# The model slides tiles on a board of 4 x 4, at most 20 times. An illegal move ends the game. First the model
# learns the form from noisy demonstrations, then which moves are legal and which are worth more.
#
#     python examples/game_2048/game_2048.py                   # rewarded by its score, 5 minutes on two cores
#     python examples/game_2048/game_2048.py --reward ruler    # a judge ranks the games of a group instead
#     python examples/game_2048/game_2048.py --model Qwen/Qwen3-1.7B --engine vllm --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack

from sliding_tiles import SYSTEM_PROMPT, SlidingTiles, demonstration, named_move, quality_of, say_board, worth

import art
from art.local import LocalBackend
from art.rewards import Ruler
from art.testing import LlmServer, TruthfulJudge

# %% [markdown]
# A rollout is one game. The model reads the board and the legal moves, and replies with one word. The seed
# decides where new tiles appear: the games of a group have the same one.


# %%
async def play(model: art.Model, seed: str) -> art.Trajectory:
    game = SlidingTiles(seed)
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "system", "content": SYSTEM_PROMPT}], reward=0.0
    )
    while not game.ended:
        trajectory.messages_and_choices.append({"role": "user", "content": say_board(game.board)})
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=8
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        game.play(named_move(choice.message.content or ""))
    trajectory.reward = worth(game.score, illegal=game.illegal)
    trajectory.metrics.update({"score": game.score, "illegal": game.illegal, "moves": game.moves})
    told = [str(one["content"]) for one in trajectory.messages()[1:]]
    trajectory.metadata["show"] = "\n\n".join([*told, game.ending])
    return trajectory


async def evaluate(model: art.Model, stage: str, count: int) -> None:
    """Log a game of each of `count` held-out seeds, and print their score and how many ended illegally."""
    games = await art.gather_trajectories(
        [play(model, f"held out/{n}") for n in range(count)], pbar_desc=None
    )
    for game in games:
        game.metadata["stage"] = stage
    await model.log([art.TrajectoryGroup([game]) for game in games], split="val")
    score, illegal, moves = (
        sum(float(game.metrics[name]) for game in games) / len(games)
        for name in ("score", "illegal", "moves")
    )
    print(
        f"{stage}, step {await model.get_step()}: score {score:.1f} in {moves:.1f} moves, "
        f"{illegal:.1%} of the games ended by an illegal move",
        flush=True,
    )


# %% [markdown]
# The judge of `--reward ruler`. Any model will do: `--judge openai/o3`. By default a judge runs here that
# counts the score again from the boards, so that the example needs no network.


# %%
async def open_ruler(stack: AsyncExitStack, judge: str | None) -> Ruler:
    rubric = "- A higher score is better: the sum of all merged tiles.\n- An illegal move is bad."
    if judge is not None:
        return Ruler(judge, rubric=rubric)
    server = await stack.enter_async_context(LlmServer(TruthfulJudge(quality_of)))
    return Ruler("openai/judge", rubric=rubric, base_url=server.base_url, api_key=server.key)


# %% [markdown]
# The training: one step of supervised fine-tuning on the demonstrations, then reinforcement learning.
# Started again, it goes on at the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"game-2048-{options.reward}-{options.seed}",
        project="game_2048",
        base_model=options.model,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    processes = options.processes or (2 if options.model.startswith("art/") else 1)
    server = {"engine": {"name": options.engine, "replicas": processes}, "trainer": {"ranks": processes}}
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(LocalBackend(path=options.path, server_options=server))
        await model.register(backend)
        ruler = await open_ruler(stack, options.judge) if options.reward == "ruler" else None
        if await model.get_step() == 0:
            await evaluate(model, "base", options.held_out)
        if await model.get_step() == 0 and options.demonstrations:
            shown = [{"messages": demonstration(number)} for number in range(options.demonstrations)]
            await model.train_sft(
                shown, art.TrainSFTConfig(learning_rate=options.sft_learning_rate, batch_size=8)
            )
            await evaluate(model, "SFT", options.held_out)
        for step in range(await model.get_step(), options.steps):
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(
                        play(model, f"train {options.seed}/{step}/{n}") for _ in range(options.group_size)
                    )
                    for n in range(options.groups)
                ),
                pbar_desc=None,
                after_each=None if ruler is None else ruler.score_group,
            )
            rate = options.learning_rate * min(1.0, 1.2 - step / options.steps)
            await model.train(groups, config=art.TrainConfig(learning_rate=rate))
            if (step + 1) % 5 == 0 or step + 1 == options.steps:
                await evaluate(model, "RL", options.held_out)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a model to play 2048.")
    parser.add_argument(
        "--model", default="art/nano-words", help="the base model: shipped, of the hub, a folder"
    )
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--reward", default="score", choices=("score", "ruler"))
    parser.add_argument("--judge", help="the judge's model, such as openai/o3; by default one that runs here")
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights and the tiles")
    parser.add_argument("--steps", type=int, default=28, help="the first is supervised")
    parser.add_argument("--demonstrations", type=int, default=240, help="games; 0: no fine-tuning")
    parser.add_argument("--sft-learning-rate", type=float, default=1e-3)
    parser.add_argument("--groups", type=int, default=8, help="seeds of a step")
    parser.add_argument("--group-size", type=int, default=16, help="games of each seed")
    parser.add_argument("--learning-rate", type=float, default=7e-4)
    parser.add_argument("--held-out", type=int, default=128, help="games of an evaluation")
    parser.add_argument("--processes", type=int, help="of engine and trainer each; for a shipped model 2")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

# %% [markdown]
# # Temporal Clue
#
# Three people, three rooms, two days: clues say who was where, and the model answers three questions in one
# reply. Most answers are in a clue, others are what the clues leave.
#
#     python examples/temporal_clue/temporal_clue.py
#     python examples/temporal_clue/temporal_clue.py --model Qwen/Qwen3-0.6B --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
from collections.abc import Sequence

from clue_puzzles import Puzzle, draw_puzzle, noisy_answers

import art
from art.local import LocalBackend

SHOWN_RIGHT = 0.15
"""Share of the questions that a demonstration does not answer at random."""

# %% [markdown]
# A rollout is one reply. The reward is the share of the questions that it answers right.


# %%
async def answer(model: art.Model, puzzle: Puzzle) -> art.Trajectory:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=puzzle.messages, max_tokens=40
    )
    choice = completion.choices[0]
    reply = choice.message.content or ""
    right = puzzle.score(reply)
    return art.Trajectory(
        messages_and_choices=[*puzzle.messages, choice],
        reward=right,
        metrics={"right": right, "all_right": right == 1},
        metadata={"show": f"{puzzle.prompt}\n\n{reply}\n\nright: {', '.join(puzzle.answers)}"},
    )


async def evaluate(model: art.Model, stage: str, held_out: int) -> None:
    """Log a reply to each held-out puzzle, and print the share of right answers."""
    puzzles = [draw_puzzle("held out", number) for number in range(held_out)]
    replies = await art.gather_trajectories([answer(model, one) for one in puzzles], pbar_desc=None)
    for one in replies:
        one.metadata["stage"] = stage
    await model.log([art.TrajectoryGroup([one]) for one in replies], split="val")
    right = sum(one.reward for one in replies) / len(replies)
    print(f"{stage}, step {await model.get_step()}: {right:.1%} of the answers right", flush=True)


# %% [markdown]
# The training: one step of supervised fine-tuning, then reinforcement learning. Started again, it goes on at
# the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"temporal-clue-{options.seed}",
        project="temporal_clue",
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
                {"messages": noisy_answers(number, SHOWN_RIGHT)} for number in range(options.demonstrations)
            ]
            await model.train_sft(
                shown, art.TrainSFTConfig(learning_rate=options.sft_learning_rate, batch_size=8)
            )
            await evaluate(model, "SFT", options.held_out)
        for step in range(await model.get_step(), options.steps):
            puzzles = [
                draw_puzzle(f"train {options.seed}", step * options.groups + n) for n in range(options.groups)
            ]
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(answer(model, puzzle) for _ in range(options.group_size))
                    for puzzle in puzzles
                ),
                pbar_desc=None,
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))
            if (step + 1) % 5 == 0 or step + 1 == options.steps:
                await evaluate(model, "RL", options.held_out)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a model to answer from clues.")
    parser.add_argument(
        "--model", default="art/nano-words", help="the base model: shipped, of the hub, a folder"
    )
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights and the puzzles")
    parser.add_argument("--steps", type=int, default=75, help="the first is supervised")
    parser.add_argument("--demonstrations", type=int, default=1600)
    parser.add_argument("--groups", type=int, default=16, help="puzzles of a step")
    parser.add_argument("--group-size", type=int, default=16, help="rollouts of each puzzle")
    parser.add_argument("--learning-rate", type=float, default=7e-4)
    parser.add_argument("--sft-learning-rate", type=float, default=2e-3)
    parser.add_argument("--held-out", type=int, default=256, help="puzzles of an evaluation")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

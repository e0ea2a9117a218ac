# %% [markdown]
# # Puzzles of reasoning-gym
#
# A dataset of reasoning-gym by its name: the library draws the questions and scores the answers (`pip
# install "agent-reinforcement-trainer[reasoning-gym]"`). `art train` does the same without a program.
#
#     python examples/reasoning_puzzles/reasoning_puzzles.py
#     python examples/reasoning_puzzles/reasoning_puzzles.py --model Qwen/Qwen3-0.6B --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
from collections.abc import Sequence

import art
from art.local import LocalBackend
from art_extensions.environments.reasoning_gym import ReasoningGymEnvironment

DATASET, CONFIG = "word_sorting", {"min_words": 2, "max_words": 2}
MAX_TOKENS = 16
QUESTION = (
    "Your task is to sort words in ascending or descending order using ASCII/Unicode ordering.\n\n"
    "Your output should be a comma-separated list of words, e.g. word_1, word_2, word_3\n\n"
    "Now, sort these words in {} order (using ASCII/Unicode ordering) and return them as a comma-separated "
    "list: {}\n"
)
EXAMPLES = [
    (QUESTION.format("ascending", "kiwi, fig"), "fig, kiwi"),
    (QUESTION.format("descending", "quince, Zebra"), "quince, Zebra"),
    (QUESTION.format("descending", "Apricot, Yams"), "Yams, Apricot"),
]
"""Words that no question has."""
PROMPTS = (
    {"system_prompt": "Reply with the answer alone.", "examples": EXAMPLES},
    {"system_prompt": "Reply with the answer alone."},
    {},
)
"""Ways to ask, the first of which is trained; the last is the adapter's own, with <answer> and </answer>."""

# %% [markdown]
# The environment. The reward is the library's own score of the answer.


# %%
class PuzzleEnvironment(ReasoningGymEnvironment):
    def __init__(self, prompt: int = 0) -> None:
        super().__init__(DATASET, train=600, val=128, **PROMPTS[prompt], **CONFIG)


# %% [markdown]
# The training. Each step has eight replies to each of eight questions. 64 held-out questions are asked
# before, on the way and after. Started again, it goes on at the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=f"reasoning_puzzles-{options.seed}",
        project="reasoning_puzzles",
        base_model=options.model,
        base_path=options.path,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed)),
    )
    engine = {"engine": {"name": options.engine}}
    async with LocalBackend(path=options.path, server_options=engine) as backend:
        await art.train_environment(
            PuzzleEnvironment(),
            model,
            backend=backend,
            tell=print,
            steps=options.steps,
            groups_per_step=options.groups,
            group_size=options.group_size,
            learning_rate=options.learning_rate,
            max_tokens=MAX_TOKENS,
            eval_scenarios=options.held_out,
            eval_every=5,
            seed=options.seed,
        )


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a model on a dataset of reasoning-gym.")
    parser.add_argument("--model", default="art/smollm2", help="the base: shipped, of the hub, a folder")
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order of questions")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=8, help="questions of a step")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of each")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--held-out", type=int, default=64, help="questions of an evaluation, at most 128")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

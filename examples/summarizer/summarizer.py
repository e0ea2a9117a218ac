# %% [markdown]
# # Summarizer
#
# A sheet has eight facts, and the reader wants three of them. First the model learns the form from noisy
# demonstrations, then reinforcement learning teaches it what to keep and what to leave out.
#
#     python examples/summarizer/summarizer.py                   # recall less a price for the length
#     python examples/summarizer/summarizer.py --reward rubric   # a judge scores by two criteria instead
#     python examples/summarizer/summarizer.py --model Qwen/Qwen3-0.6B --learning-rate 3e-4

# %%
from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack

from fact_sheets import FactSheet, brevity, completeness, draw_sheet, noisy_summary, recall, words_of

import art
from art.local import LocalBackend
from art.rewards import Criterion, Rubric
from art.testing import LlmServer, TruthfulJudge

PRICE = 0.03
"""Of a word."""

# %% [markdown]
# A rollout is one summary. The reward is the share of the wanted facts, less a price for each word.


# %%
async def summarize(model: art.Model, sheet: FactSheet, temperature: float = 1.0) -> art.Trajectory:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=sheet.messages, max_tokens=48, temperature=temperature
    )
    choice = completion.choices[0]
    summary = choice.message.content or ""
    kept, words = recall(sheet, summary), len(words_of(summary))
    return art.Trajectory(
        messages_and_choices=[*sheet.messages, choice],
        reward=kept - PRICE * words,
        metrics={"recall": kept, "words": words},
        metadata={"show": f"{sheet.prompt}\n\n{summary}"},
    )


async def evaluate(model: art.Model, stage: str, held_out: int) -> None:
    """Log a summary of each held-out sheet, and print recall and length."""
    sheets = [draw_sheet("held out", number) for number in range(held_out)]
    summaries = await art.gather_trajectories([summarize(model, sheet) for sheet in sheets], pbar_desc=None)
    for one in summaries:
        one.metadata["stage"] = stage
    await model.log([art.TrajectoryGroup([one]) for one in summaries], split="val")
    kept, words = (
        sum(float(one.metrics[name]) for one in summaries) / len(summaries) for name in ("recall", "words")
    )
    print(f"{stage}, step {await model.get_step()}: recall {kept:.2f} in {words:.1f} words", flush=True)


# %% [markdown]
# The judge of `--reward rubric` gives a score for each criterion. Any model will do: `--judge openai/o3`. By
# default a judge runs here that counts facts and words, so that the example needs no network.


# %%
async def open_rubric(stack: AsyncExitStack, judge: str | None) -> Rubric:
    criteria = [
        Criterion("complete", "Every fact that was asked for is there, with its value.", weight=3.0),
        Criterion("brief", "Nothing else is said."),
    ]
    if judge is not None:
        return Rubric(criteria, judge)
    truth = TruthfulJudge(completeness, criteria={"complete": completeness, "brief": brevity})
    server = await stack.enter_async_context(LlmServer(truth))
    return Rubric(criteria, "openai/judge", base_url=server.base_url, api_key=server.key)


# %% [markdown]
# The training: one step of supervised fine-tuning, then reinforcement learning. Started again, it goes on at
# the newest step.


# %%
async def main(options: argparse.Namespace) -> None:
    adapter = art.dev.PeftArgs(random_state=options.seed, r=16, lora_alpha=32)
    model = art.TrainableModel(
        name=f"summarizer-{options.reward}-{options.seed}",
        project="summarizer",
        base_model=options.model,
        _internal_config=art.dev.InternalModelConfig(peft_args=adapter),
    )
    engine = {"engine": {"name": options.engine}}
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(LocalBackend(path=options.path, server_options=engine))
        await model.register(backend)
        rubric = await open_rubric(stack, options.judge) if options.reward == "rubric" else None
        if await model.get_step() == 0:
            await evaluate(model, "base", options.held_out)
        if await model.get_step() == 0 and options.demonstrations:
            shown = [{"messages": noisy_summary(number)} for number in range(options.demonstrations)]
            await model.train_sft(
                shown, art.TrainSFTConfig(learning_rate=options.sft_learning_rate, batch_size=8)
            )
            await evaluate(model, "SFT", options.held_out)
        for step in range(await model.get_step(), options.steps):
            sheets = [
                draw_sheet(f"train {options.seed}", step * options.groups + n) for n in range(options.groups)
            ]
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(
                        summarize(model, sheet, options.temperature) for _ in range(options.group_size)
                    )
                    for sheet in sheets
                ),
                pbar_desc=None,
                after_each=None if rubric is None else rubric.score_group,
            )
            config = art.TrainConfig(
                learning_rate=options.learning_rate,
                algorithm={"name": "art", "updates": {"minibatches": 4}},
            )
            await model.train(groups, config=config)
            if (step + 1) % 5 == 0 or step + 1 == options.steps:
                await evaluate(model, "RL", options.held_out)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a model to summarize what a reader wants to know.")
    parser.add_argument(
        "--model", default="art/nano-words", help="the base model: shipped, of the hub, a folder"
    )
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--reward", default="written", choices=("written", "rubric"))
    parser.add_argument("--judge", help="the judge's model, such as openai/o3; by default one that runs here")
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights and the sheets")
    parser.add_argument("--steps", type=int, default=35, help="the first is supervised")
    parser.add_argument("--demonstrations", type=int, default=3200)
    parser.add_argument("--groups", type=int, default=16, help="sheets of a step")
    parser.add_argument("--group-size", type=int, default=16, help="rollouts of each sheet")
    parser.add_argument("--temperature", type=float, default=1.25, help="of rollouts: above 1 explores more")
    parser.add_argument("--learning-rate", type=float, default=7e-4)
    parser.add_argument("--sft-learning-rate", type=float, default=2e-3)
    parser.add_argument("--held-out", type=int, default=256, help="sheets of an evaluation")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

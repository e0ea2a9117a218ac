# %% [markdown]
# # Production feedback
#
# An application (`help_desk.py`) asks a released model, logs each request, and keeps the thumbs of its users.
# Each week the log becomes groups for reinforcement learning and rows for fine-tuning. A bug report becomes
# examples and a regression test. The retrained model is released only if a guard holds.
#
#     python examples/production_feedback/production_feedback.py    # the nano model, a minute
#     python examples/production_feedback/production_feedback.py --model Qwen/Qwen3-1.7B \
#         --learning-rate 3e-4 --sft-rate 3e-4 --demonstrations 500

# %%
from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import help_desk
from help_desk import HELD_OUT, REPORT, TEAMS, Release
from openai.types.chat.chat_completion import Choice

import art
from art.local import LocalBackend
from art.runs.comparison import Estimate
from art.runs.evaluation import CheckpointScore, paired_difference, score_of
from art_extensions.logs.request_logs import CallFilter, LogImport

PROJECT = "production_feedback"
LIKED, CORRECTED = 3, 12  # how often a row is shown: corrected rows are few, and the mistake is a habit
EACH, MARGIN = 4, 0.05  # rollouts of a held-out ticket; the share of right answers that may be lost at most


# %% [markdown]
# A prompt with several rated replies is a group: the thumbs are the rewards, and each reply names the tokens
# that the release sampled. Replies with a thumb up are rows for fine-tuning, read as `art import` reads them.
# A mistake that is always made has thumbs down alone, which do not say what is right. The bug report does.


# %%
def groups_of(log: Path) -> list[art.TrajectoryGroup]:
    """Returns a group for each prompt with different thumbs."""
    rated: dict[str, list[art.Trajectory]] = {}
    for call in map(json.loads, log.read_text().splitlines()):
        if "thumb" in call["tags"]:
            asked, choice = call["request"]["messages"], Choice.model_validate(call["response"]["choices"][0])
            rollout = art.Trajectory(messages_and_choices=[*asked, choice], reward=call["tags"]["thumb"])
            rated.setdefault(asked[-1]["content"], []).append(rollout)
    return [art.TrajectoryGroup(some) for some in rated.values() if len({one.reward for one in some}) > 1]


def rows_of(log: Path, seed: int) -> list[dict[str, Any]]:
    """Returns the replies with a thumb up, and the tickets of the bug report with the right reply."""
    liked = LogImport([log], wanted=CallFilter(least_scores={"thumb": 1})).rows()
    prompts = [one["messages"][-1]["content"] for one in LogImport([log], to="scenarios").rows()]
    rows = [row for row in liked if not REPORT.is_about(row["messages"][0]["content"])]
    rows = LIKED * rows + CORRECTED * REPORT.rows(prompts)
    return random.Random(seed).sample(rows, len(rows))


async def retrain(line: art.TrainableModel, release: Release, log: Path, options: argparse.Namespace) -> None:
    """Makes two steps on top of the release: the thumbs, then the rows."""
    if await line.get_step() == release.step:
        groups = groups_of(log)
        await line.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))
    if await line.get_step() == release.step + 1:
        rows = rows_of(log, options.seed)
        await line.train_sft(rows, art.TrainSFTConfig(learning_rate=options.sft_rate / 2, batch_size=16))


# %% [markdown]
# The held-out tickets are in words that no training has, with the same seeds each time. So two releases can
# be compared ticket by ticket. `art eval` takes this rollout as it is.


# %%
async def rollout(model: art.Model, scenario: dict[str, str], seed: int) -> art.Trajectory:
    asked = help_desk.messages(scenario["prompt"])
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=asked, max_tokens=8, seed=seed
    )
    choice = completion.choices[0]
    trajectory = art.Trajectory(messages_and_choices=[*asked, choice])
    trajectory.reward = trajectory.metrics["right"] = float(choice.message.content == scenario["team"])
    trajectory.metadata["show"] = f"{scenario['prompt']} {choice.message.content} (right: {scenario['team']})"
    return trajectory


async def evaluate(
    backend: LocalBackend, line: art.TrainableModel, step: int, stage: str
) -> list[art.TrajectoryGroup]:
    async with backend.adapter_lease(line, step):
        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(rollout(line, ticket, EACH * number + turn) for turn in range(EACH))
                for number, ticket in enumerate(HELD_OUT)
            ),
            pbar_desc=None,
        )
    for trajectory in (one for group in groups for one in group):
        trajectory.metadata |= {"stage": stage, "release": f"{line.name}@{step}"}
    right = score_of(groups).evaluation.means["right"]
    print(f"{line.name}@{step}: {right:.2f} of the held-out tickets right", flush=True)
    return groups


def guard_holds(before: list[art.TrajectoryGroup], after: list[art.TrajectoryGroup]) -> bool:
    """Returns whether the reported mistake is gone and nothing else is lost, ticket by ticket."""

    def score(groups: list[art.TrajectoryGroup], teams: Sequence[str], reported: bool) -> CheckpointScore:
        wanted = [one["team"] in teams and (one["topic"] == REPORT.topic) == reported for one in HELD_OUT]
        return score_of(list(compress(groups, wanted)))

    def gain(teams: Sequence[str]) -> Estimate:
        return paired_difference(score(before, teams, False), score(after, teams, False))

    fixed, others = score(after, TEAMS, True).evaluation.means["right"], gain(TEAMS)
    lost = [team for team in TEAMS if gain([team]).below_zero]
    print(f"  {REPORT.topic}: {fixed:.2f} right; the others: {others.signed()}; lost: {lost or 'none'}")
    return fixed >= 0.9 and others.low > -MARGIN and not lost


# %% [markdown]
# What is released is a line in a file. A refused retraining leaves nothing behind: the next one starts from a
# fork of the release, with the same weights. A model is trained on its own replies, so the fork takes over.


# %%
def line_named(name: str, options: argparse.Namespace) -> art.TrainableModel:
    adapter = art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=options.seed))
    return art.TrainableModel(name=name, project=PROJECT, base_model=options.model, _internal_config=adapter)


async def main(options: argparse.Namespace) -> None:
    desk = line = line_named(f"{PROJECT}-{options.seed}", options)
    released = Path(options.path) / PROJECT / f"{desk.name}.release.json"
    engine = {"engine": {"name": options.engine}}
    async with LocalBackend(path=options.path, server_options=engine) as backend:
        await desk.register(backend)
        release = Release.read(released)
        if release is None:
            if await desk.get_step() == 0:
                await desk.log(await evaluate(backend, desk, 0, "base"), split="val", step=0)
                rows = help_desk.demonstrations(options.seed, options.demonstrations)
                await desk.train_sft(rows, art.TrainSFTConfig(learning_rate=options.sft_rate, batch_size=16))
            before = await evaluate(backend, desk, 1, "SFT")
            await desk.log(before, split="val", step=1)
            release = Release(desk.name, 1, week=0).promote(released)
        else:
            line = line_named(release.model, options)
            await line.register(backend)
            before = await evaluate(backend, line, release.step, "feedback")
        for week in range(release.week + 1, options.steps + 1):
            log = released.with_name(f"{desk.name}.week-{week}.jsonl")
            users = help_desk.Users(f"{options.seed}/{week}", inverted=week == options.wrong_thumbs)
            await help_desk.serve_week(line.openai_client(), release, users, log)
            await retrain(line, release, log, options)
            step = await line.get_step()
            after = await evaluate(backend, line, step, "feedback")
            if guard_holds(before, after):
                print(f"week {week}: {line.name}@{step} is released", flush=True)
                await desk.log(after, split="val", step=step)
                release, before = Release(line.name, step, week).promote(released), after
            else:
                print(f"week {week}: {line.name}@{step} is refused", flush=True)
                await line.log(after, split="refused", step=step)
                refused, line = line, line_named(f"{desk.name}-after-week-{week}", options)
                await line.register(backend)
                if await line.get_step() == 0:
                    await backend.fork_checkpoint(line, refused.name, step=release.step)
                release = Release(line.name, release.step, week).promote(released)


# %%
def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Retrain a served model on the feedback of its users.")
    parser.add_argument(
        "--model", default="art/nano-words", help="the base model: a shipped one, a name of the hub, a folder"
    )
    parser.add_argument("--engine", default="builtin", choices=("builtin", "vllm"))
    parser.add_argument("--seed", type=int, default=0, help="of the adapter's first weights and the users")
    parser.add_argument("--steps", type=int, default=4, help="weeks, each with a retraining")
    parser.add_argument("--learning-rate", type=float, default=7e-4, help="of a step on thumbs")
    parser.add_argument("--sft-rate", type=float, default=2e-3, help="of fine-tuning; a week has half of it")
    parser.add_argument("--demonstrations", type=int, default=4000, help="rows for the first release")
    parser.add_argument("--wrong-thumbs", type=int, metavar="WEEK", help="plants a fault: swapped thumbs")
    parser.add_argument("--path", default=".art", help="where models and logs are kept")
    return parser.parse_args(arguments)


# %%
if __name__ == "__main__":
    art.run(main(read_options()))

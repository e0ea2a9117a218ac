"""Runs that are broken and really trained: `art explain` names the stage, and the log said it meanwhile.

The signatures that a small model cannot be brought to show in seconds are held by runs whose numbers are
written through the log: `tests/extensions/ui/test_explain.py`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import art
from art.environments import tasks
from art_extensions.ui.explain import LOOK_EVERY, Explanation, explain

pytestmark = pytest.mark.slow

Reward = Callable[[art.Trajectory], float]
COLORS = ("red", "blue", "green", "yellow", "pink")


@dataclass(frozen=True, kw_only=True)
class BrokenRun:
    """What is wrong with a run, and what must be found, the first broken stage first."""

    found: tuple[int, ...]
    stage: str
    task: str = "yes-no-maybe"
    base_model: str = "art/nano-games"
    steps: int = 5
    groups: int = 6
    learning_rate: float = 1.5e-3
    reward: Reward | None = None
    sampling: tuple[tuple[str, Any], ...] = ()
    sampled_first: bool = False
    """All rollouts are sampled by the first adapter."""
    validated: bool = False


def replied_tokens(trajectory: art.Trajectory) -> float:
    return float(sum(getattr(item, "completion_tokens", 0) for item in trajectory.messages_and_choices))


RUNS = {
    "a reward that is constant": BrokenRun(found=(5,), stage="group", reward=lambda one: 0.0),
    "a learning rate far too high": BrokenRun(found=(20,), stage="gradient", steps=6, learning_rate=0.1),
    "samples that are far too old": BrokenRun(
        found=(6,), stage="group", steps=14, groups=3, learning_rate=1e-4, sampled_first=True
    ),
    "replies that are cut": BrokenRun(found=(4,), stage="rollout", sampling=(("max_tokens", 1),)),
    "a reward with the wrong sign": BrokenRun(
        found=(12, 15), stage="reward", steps=8, reward=lambda one: -float(one.reward), validated=True
    ),
    "a reward that pays for length": BrokenRun(
        found=(11,), stage="reward", steps=10, task="say", base_model="art/nano-words", reward=replied_tokens
    ),
    "calls that nobody can read": BrokenRun(
        found=(3,), stage="rollout", task="mail", base_model="art/nano-tools", groups=3,
        sampling=(("temperature", 2.0),),
    ),
}  # fmt: skip


async def say_words(model: art.TrainableModel[Any, Any], index: int) -> art.Trajectory:
    """Asks for a few words to be said again."""
    words = random.Random(index).choices(COLORS, k=5)
    asked: list[Any] = [{"role": "user", "content": f"repeat after me: {' '.join(words)}"}]
    done = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=asked, max_tokens=64
    )
    return art.Trajectory(messages_and_choices=[*asked, done.choices[0]], reward=0.0)


async def train(folder: Path, run: BrokenRun) -> Explanation:
    model = art.TrainableModel(name="m", project="p", base_model=run.base_model)

    async def roll_out(seed: int, index: int, **sampling: Any) -> art.Trajectory:
        if run.task == "say":
            return await say_words(model, index)
        task = tasks.find(run.task)
        return await task.rollout(model, task.scenario(seed, index), **sampling)

    async def step_groups(step: int) -> list[art.TrajectoryGroup]:
        first = step * run.groups
        groups = [
            art.TrajectoryGroup(roll_out(0, index, **dict(run.sampling)) for _ in range(8))
            for index in range(first, first + run.groups)
        ]
        gathered = await art.gather_trajectory_groups(groups)
        for group in gathered:
            for one in group:
                one.reward = run.reward(one) if run.reward else one.reward
        return gathered

    async with art.LocalBackend(path=str(folder)) as backend:
        await model.register(backend)
        steps = range(run.steps)
        waiting = [await step_groups(step) for step in steps] if run.sampled_first else []
        for step in steps:
            groups = waiting[step] if waiting else await step_groups(step)
            made = await backend.train(model, groups, learning_rate=run.learning_rate)
            await model.log(groups, split="train", step=made.step, metrics=made.metrics)
            if run.validated:
                held_out = [art.TrajectoryGroup([roll_out(1, index)]) for index in range(32)]
                await model.log(await art.gather_trajectory_groups(held_out), split="val", step=made.step)
    return explain("p/m", folder)


@pytest.mark.parametrize("name", RUNS)
async def test_a_run_that_is_broken_is_found(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = RUNS[name]
    with caplog.at_level(logging.WARNING, "art_extensions.ui.explain"):
        explanation = await train(tmp_path, run)
    first = explanation.findings[0]
    assert first.stage == run.stage and first.number == run.found[0], explanation.text()
    assert set(run.found) <= {one.number for one in explanation.findings}, explanation.text()
    if run.found[0] not in (12, 15):  # they are of validations, which have no record
        assert len(first.examples) == 3, explanation.text()
    if run.steps % LOOK_EVERY == 0:  # else the steps after the last look show it
        lines = [one.getMessage() for one in caplog.records if one.name == "art_extensions.ui.explain"]
        assert any(line.startswith(f"{run.stage}: ") for line in lines), lines

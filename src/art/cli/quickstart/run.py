"""The quick start's loop: what any program that trains with ART does, and its progress saved after each step.

evaluate -> (attempts -> rewards -> train) x steps -> evaluate
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import art
from art import tasks
from art.cli.quickstart.evaluation import Evaluation
from art.cli.quickstart.folder import RunFolder, StepRow
from art.cli.quickstart.settings import Settings
from art.tasks import Task

PROJECT = "quickstart"
EVALUATION_SEED = 1_000_003
"""Evaluation scenarios are drawn far from those of training, the same before and after."""
KEPT_TRANSCRIPTS = 200

ADDED_BY_GATHERING = {"completion_tokens", "duration"}

OnStep = Callable[[StepRow], None]


async def run(settings: Settings, folder: RunFolder, *, on_step: OnStep) -> tuple[Evaluation, Evaluation]:
    """Do what is still to be done of a run; returns the evaluations before and after.

    Everything that matters is on disk after each step: a run may be cancelled anywhere and called again.
    """
    task = tasks.find(settings.task)
    model = art.TrainableModel(name=task.NAME, project=PROJECT, base_model=settings.base_model)
    options = {"engine": {"options": {"reuse_prefixes": False}}} if settings.deterministic else {}
    async with art.LocalBackend(path=str(folder.data_dir), server_options=options) as backend:
        await model.register(backend)
        before = await evaluate_once(0, model, task, settings, folder)
        for step in range(await model.get_step(), settings.steps):
            on_step(await train_one_step(model, task, settings, folder, step))
        after = await evaluate_once(settings.steps, model, task, settings, folder)
    return before, after


async def train_one_step(
    model: art.TrainableModel, task: Task, settings: Settings, folder: RunFolder, step: int
) -> StepRow:
    """Attempts, rewards, gradient, new adapter."""
    begin = time.perf_counter()
    limit = concurrency(settings)
    scenarios = [
        task.scenario(settings.seed, step * settings.groups + index) for index in range(settings.groups)
    ]
    groups = await art.gather_trajectory_groups(
        [
            art.TrajectoryGroup(
                attempt(limit, model, task, scenario, request_seed(settings, step, index, number))
                for number in range(settings.group_size)
            )
            for index, scenario in enumerate(scenarios)
        ],
        pbar_desc=f"step {step + 1}/{settings.steps}",
    )
    gathered = time.perf_counter()
    rate = task.DEFAULTS.rate_at(step, legs=settings.schedule, learning_rate=settings.learning_rate)
    result = await model.train(groups, config=art.TrainConfig(learning_rate=rate))
    trajectories = [trajectory for group in groups for trajectory in group]
    row = StepRow(
        step=step + 1,
        reward=mean([reward_of(trajectory) for trajectory in trajectories]),
        score=mean([float(trajectory.metrics[task.SCORE]) for trajectory in trajectories]),
        trained=int(result.metrics.get("data/sheet/trained_rollouts", 0)),
        seconds_rollouts=round(gathered - begin, 3),
        seconds_training=round(time.perf_counter() - gathered, 3),
    )
    folder.add_step(row)
    return row


async def evaluate_once(
    step: int, model: art.TrainableModel, task: Task, settings: Settings, folder: RunFolder
) -> Evaluation:
    """Attempts at fresh scenarios with the newest adapter (that of `step`), or what was saved of them."""
    saved = folder.evaluation(step)
    if saved is not None:
        return saved[0]
    limit = concurrency(settings)
    trajectories = await art.gather_trajectories(
        [
            attempt(
                limit, model, task, task.scenario(EVALUATION_SEED, index), evaluation_seed(settings, index)
            )
            for index in range(settings.evaluation_games)
        ],
        pbar_desc="evaluating",
    )
    attempts = [attempt_row(task, index, trajectory) for index, trajectory in enumerate(trajectories)]
    evaluation = Evaluation.of([scores(trajectory) for trajectory in trajectories])
    folder.save_evaluation(step, evaluation, attempts)
    return evaluation


def scores(trajectory: art.Trajectory) -> dict[str, float]:
    """The reward and the task's own metrics, without those that gathering adds."""
    metrics = {
        name: float(value) for name, value in trajectory.metrics.items() if name not in ADDED_BY_GATHERING
    }
    return {"reward": reward_of(trajectory), **metrics}


def reward_of(trajectory: art.Trajectory) -> float:
    assert not isinstance(trajectory.reward, art.Unscored), "these tasks score every attempt"
    return trajectory.reward


def attempt_row(task: Task, index: int, trajectory: art.Trajectory) -> dict[str, Any]:
    row: dict[str, Any] = {"index": index, "reward": reward_of(trajectory)}
    if index < KEPT_TRANSCRIPTS:
        row["transcript"] = task.show(trajectory.messages())
    return row


def concurrency(settings: Settings) -> asyncio.Semaphore:
    """One request at a time, computed from its first token, makes rounding repeatable; otherwise the engine
    decides."""
    return asyncio.Semaphore(1 if settings.deterministic else settings.groups * settings.group_size)


async def attempt(
    limit: asyncio.Semaphore, model: art.TrainableModel, task: Task, scenario: Any, seed: int | None
) -> art.Trajectory:
    async with limit:
        return await task.rollout(model, scenario, seed=seed)


def request_seed(settings: Settings, step: int, index: int, number: int) -> int | None:
    """A seed that depends on what is asked, never on when: (run, step, scenario, number)."""
    if not settings.deterministic:
        return None
    place = (step * settings.groups + index) * settings.group_size + number
    return settings.seed * 1_000_000_007 + place


def evaluation_seed(settings: Settings, index: int) -> int | None:
    return None if not settings.deterministic else EVALUATION_SEED + index


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")

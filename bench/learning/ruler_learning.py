"""One run of `ruler.py`: a built-in task learned from its own reward, or from a judge's over HTTP.

Both do the same: the steps, groups and rates of the quick start, the same scenarios, the same evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import art
from art.environments import tasks
from art.rewards import Ruler
from art_extensions.testing import LlmServer, Mischief, TruthfulJudge
from art_extensions.testing.truthful_judge import BY_TASK

EVALUATION_SEED = 1_000_003
RUBRIC = (
    "An attempt that reaches its goal is better than one that does not; one that breaks the rules is worst."
)
DEADLINE = 2.0
"""Seconds for an answer of the judge, which takes some ms where it is not in trouble."""

AfterEach = Callable[[art.TrajectoryGroup], Awaitable[art.TrajectoryGroup]]


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a run came to."""

    score: float
    """The task's score after the last step: the share of fresh attempts that went well."""
    reward: float
    """The mean of the task's own reward over the same attempts."""
    seconds: float
    """Of all steps, without start and evaluation."""
    questions: int = 0
    """That the judge was asked."""
    unscored: int = 0
    """Rollouts to which it gave no score."""


async def learn(name: str, seed: int, folder: Path, *, judge: Mischief | None, attempts: int) -> Learned:
    """Train a model on the task `name`, then let it make `attempts` fresh attempts.

    judge: how the judge misbehaves; None: there is none, the task's own reward counts.
    """
    task = tasks.find(name)
    model = art.TrainableModel(name=f"{name}-{seed}", project="ruler", base_model=task.DEFAULTS.base_model)
    async with AsyncExitStack() as stack:
        after_each: AfterEach | None = None
        server = LlmServer(TruthfulJudge(BY_TASK[name]), mischief=judge)
        if judge is not None:
            await stack.enter_async_context(server)
            ruler = Ruler(
                "openai/truth",
                rubric=RUBRIC,
                base_url=server.base_url,
                api_key=server.key,
                cache=False,
                deadline=DEADLINE,
            )
            after_each = ruler.score_group
        backend = await stack.enter_async_context(art.LocalBackend(path=str(folder)))
        await model.register(backend)
        begin, unscored = time.perf_counter(), 0
        for step in range(task.DEFAULTS.steps):
            unscored += await train_one_step(model, task, seed, step, after_each)
        seconds = time.perf_counter() - begin
        questions = len(server.requests)
        fresh = await art.gather_trajectories(
            (task.rollout(model, task.scenario(EVALUATION_SEED, index)) for index in range(attempts)),
            pbar_desc=None,
        )
    return Learned(
        score=sum(float(one.metrics[task.SCORE]) for one in fresh) / len(fresh),
        reward=sum(own_reward(one) for one in fresh) / len(fresh),
        seconds=seconds,
        questions=questions,
        unscored=unscored,
    )


async def train_one_step(
    model: art.TrainableModel, task: tasks.Task, seed: int, step: int, after_each: AfterEach | None
) -> int:
    """Attempts, rewards, gradient. Returns how many rollouts have no score."""
    defaults = task.DEFAULTS
    groups = await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(
                task.rollout(model, task.scenario(seed, step * defaults.groups + index))
                for _ in range(defaults.group_size)
            )
            for index in range(defaults.groups)
        ),
        pbar_desc=None,
        after_each=after_each,
    )
    await model.train(groups, config=art.TrainConfig(learning_rate=defaults.rate_at(step)))
    return sum(isinstance(one.reward, art.Unscored) for group in groups for one in group)


def own_reward(trajectory: art.Trajectory) -> float:
    """The task's own, which always is a number."""
    assert not isinstance(trajectory.reward, art.Unscored), "these tasks score every attempt"
    return float(trajectory.reward)
